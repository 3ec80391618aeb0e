// One step of several environments: their bound `step` methods called one after the other, and what they give
// put where it belongs, without an object of ours for any of them.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "bindings/arrays.hpp"
#include "bindings/module.hpp"
#include "clusterenv/network.hpp"
#include "clusterenv/sample.hpp"

namespace clusterenv::bindings {
namespace {

constexpr py::ssize_t kReturned = 5;  // observation, reward, terminated, truncated, info

/// An array [n, *shape] into which single observations are copied, where they are arrays just like its rows.
class Rows {
  public:
    explicit Rows(py::array out)
        : out_(std::move(out)),
          proxy_(*py::detail::array_proxy(out_.ptr())),
          shape_(out_.shape() + 1, static_cast<std::size_t>(out_.ndim() - 1)),
          row_bytes_(out_.shape(0) == 0 ? 0 : static_cast<std::size_t>(out_.nbytes() / out_.shape(0))) {}

    /// Whether it was such an array.
    bool take(PyObject* observation, py::ssize_t row) const {
        if (Py_TYPE(observation) != py::detail::npy_api::get().PyArray_Type_) {
            return false;
        }
        const auto* seen = py::detail::array_proxy(observation);
        if (seen->descr != proxy_.descr || static_cast<std::size_t>(seen->nd) != shape_.size() ||
            !std::equal(shape_.begin(), shape_.end(), seen->dimensions) ||
            (seen->flags & py::array::c_style) == 0) {
            return false;
        }
        std::memcpy(proxy_.data + (static_cast<std::size_t>(row) * row_bytes_), seen->data, row_bytes_);
        return true;
    }

  private:
    py::array out_;  // keeps what the next points to
    const py::detail::PyArray_Proxy& proxy_;
    std::span<const py::ssize_t> shape_;
    std::size_t row_bytes_;
};

std::optional<Rows> checked_rows(const py::object& out, py::ssize_t count) {
    if (out.is_none()) {
        return std::nullopt;
    }
    if (!py::isinstance<py::array>(out)) {
        throw py::type_error("out is of type " + type_name(out) + "; expected a NumPy array or None");
    }
    const auto array = py::reinterpret_borrow<py::array>(out);
    if (array.ndim() < 1 || array.shape(0) != count) {
        throw py::value_error("out has shape " + text_of(array.attr("shape")) + "; expected [" +
                              std::to_string(count) + ", ...]");
    }
    if ((array.flags() & py::array::c_style) == 0 || array.dtype().attr("hasobject").cast<bool>()) {
        throw py::value_error("out is strided or holds objects; expected a C-contiguous array of numbers");
    }
    check_writeable(array, "out");
    return Rows(array);
}

py::list checked_list(const py::object& object, const char* name, py::ssize_t count) {
    if (PyList_CheckExact(object.ptr()) == 0 || PyList_GET_SIZE(object.ptr()) != count) {
        throw py::value_error(std::string(name) + " is not a list of " + std::to_string(count) + " items");
    }
    return py::reinterpret_borrow<py::list>(object);
}

py::object stolen(PyObject* object) {
    if (object == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(object);
}

bool is_true(PyObject* flag) {
    if (flag == Py_True || flag == Py_False) {
        return flag == Py_True;
    }
    const int truth = PyObject_IsTrue(flag);
    if (truth < 0) {
        throw py::error_already_set();
    }
    return truth != 0;
}

/// `number` reads what is no plain number.
double reward_of(PyObject* reward, const py::object& number) {
    if (PyFloat_Check(reward) != 0) {  // that of NumPy is a subclass
        return PyFloat_AS_DOUBLE(reward);
    }
    if (PyLong_Check(reward) != 0) {
        const double value = PyLong_AsDouble(reward);
        if (value == -1.0 && PyErr_Occurred() != nullptr) {
            throw py::error_already_set();
        }
        return value;
    }
    return number(py::handle(reward)).cast<double>();
}

/// What a step gave, as a tuple of five.
py::object five_of(py::object returned) {
    if (PyTuple_CheckExact(returned.ptr()) != 0 && PyTuple_GET_SIZE(returned.ptr()) == kReturned) {
        return returned;
    }
    py::object tuple = stolen(PySequence_Tuple(returned.ptr()));
    const py::ssize_t size = PyTuple_GET_SIZE(tuple.ptr());
    if (size != kReturned) {
        throw py::value_error("step returned " + std::to_string(size) + " values; expected " +
                              std::to_string(kReturned));
    }
    return tuple;
}

/// Slots of the array in which a round over the environments tells how far it has got. Others may read it.
enum Slot : std::uint8_t { kCalls, kStep, kRow, kNotCopied, kSlots };

/// What a round does with an environment.
enum Plan : std::uint8_t { kMove, kStop, kPassOver };

/// The environments of a shard, and what is kept of them. Lists of the caller's are changed in place.
class Environments {
  public:
    /// `steps`: bound methods; `observations`: what they gave last; `limits` [n, 2]: steps of the episode and
    /// the most there may be, or 0, where a wrapper that only counts is left out of the method; `number`
    /// reads a reward that is no plain number.
    Environments(const py::object& steps, const py::object& observations, const py::object& limits,
                 const py::object& progress, py::object number)
        : count_(PyList_CheckExact(steps.ptr()) != 0 ? PyList_GET_SIZE(steps.ptr()) : -1),
          steps_(checked_list(steps, "steps", count_)),
          observations_(checked_list(observations, "observations", count_)),
          limits_array_(limits),
          progress_array_(progress),
          limits_(output_matrix<std::int64_t>(limits, "limits", static_cast<std::size_t>(count_), 2)),
          progress_(output_vector<std::int64_t>(progress, "progress", kSlots)),
          number_(std::move(number)) {}

    py::ssize_t count() const { return count_; }
    std::span<std::int64_t> progress() const { return progress_; }

    /// Steps those from `first` on, up to one whose episode ends: its number, or how many there are.
    ///
    /// Observations are copied into `rows` where they can be, that of row `first` - 1 too, as it began the
    /// next episode; the others are counted. `plan` may have the round pass rows over, or stop before one.
    /// An info that is more than an empty dict is given to `keep`, with its row, before the next step.
    py::ssize_t step(py::ssize_t first, const py::list& actions, const std::optional<Rows>& rows,
                     std::span<double> rewards, std::span<bool> terminations, std::span<bool> truncations,
                     std::span<const std::uint8_t> plan, const py::object& keep) const {
        const auto copied = [&](PyObject* observation, py::ssize_t row) {
            progress_[kNotCopied] += rows && rows->take(observation, row) ? 0 : 1;
        };
        if (first == 0) {
            progress_[kNotCopied] = 0;
        } else {
            copied(item(observations_, first - 1).ptr(), first - 1);
        }
        for (py::ssize_t row = first; row < count_; ++row) {
            const auto place = static_cast<std::size_t>(row);
            if (!plan.empty() && plan[place] != kMove) {
                if (plan[place] == kStop) {
                    return row;
                }
                continue;
            }
            ++progress_[kCalls];
            progress_[kRow] = row;
            const py::object five =
                five_of(stolen(PyObject_CallOneArg(item(steps_, row).ptr(), item(actions, row).ptr())));
            const auto part = [&](py::ssize_t i) { return PyTuple_GET_ITEM(five.ptr(), i); };
            rewards[place] = reward_of(part(1), number_);
            terminations[place] = is_true(part(2));
            const bool late = is_late(place);
            truncations[place] = is_true(part(3)) || late;
            Py_INCREF(part(0));
            if (PyList_SetItem(observations_.ptr(), row, part(0)) != 0) {
                throw py::error_already_set();
            }
            if (!keep.is_none() && (PyDict_CheckExact(part(4)) == 0 || PyDict_GET_SIZE(part(4)) != 0)) {
                keep(row, py::handle(part(4)));
            }
            if (terminations[place] || truncations[place]) {
                return row;
            }
            copied(part(0), row);
        }
        return count_;
    }

  private:
    /// Held, since the lists may be changed by whatever an environment calls.
    static py::object item(const py::list& list, py::ssize_t row) {
        PyObject* object = PyList_GetItem(list.ptr(), row);
        if (object == nullptr) {
            throw py::error_already_set();
        }
        return py::reinterpret_borrow<py::object>(object);
    }

    bool is_late(std::size_t row) const {
        const std::span<std::int64_t> limit = limits_.row(row);
        return limit[1] != 0 && ++limit[0] >= limit[1];
    }

    py::ssize_t count_;
    py::list steps_;
    py::list observations_;
    py::object limits_array_;
    py::object progress_array_;
    MatrixView<std::int64_t> limits_;
    std::span<std::int64_t> progress_;
    py::object number_;
};

py::ssize_t checked_place(py::ssize_t value, const char* name, py::ssize_t first, py::ssize_t last) {
    if (value < first || value > last) {
        throw py::value_error(std::string(name) + " is " + std::to_string(value) + "; expected from " +
                              std::to_string(first) + " to " + std::to_string(last));
    }
    return value;
}

py::ssize_t step_rows(const Environments& environments, py::ssize_t first, const py::object& actions,
                      const py::object& out, const py::object& rewards, const py::object& terminations,
                      const py::object& truncations, const py::object& plan, const py::object& keep) {
    const py::ssize_t count = environments.count();
    const auto size = static_cast<std::size_t>(count);
    const auto planned =
        plan.is_none() ? std::span<const std::uint8_t>() : input_vector<std::uint8_t>(plan, "plan", count);
    return environments.step(checked_place(first, "first", 0, count), checked_list(actions, "actions", count),
                             checked_rows(out, count), output_vector<double>(rewards, "rewards", size),
                             output_vector<bool>(terminations, "terminations", size),
                             output_vector<bool>(truncations, "truncations", size), planned, keep);
}

/// A policy that is a network and a distribution, and draws from it.
class Drawing {
  public:
    Drawing(const py::object& network, const std::string& kind, const py::object& log_std, std::int64_t start)
        : network_object_(network), network_(py::cast<const Network&>(network)), kind_(kind), start_(start) {
        if (kind != "categorical" && kind != "bernoulli" && kind != "diag_gaussian") {
            throw py::value_error("kind is " + kind + "; expected categorical, bernoulli or diag_gaussian");
        }
        if ((kind == "diag_gaussian") == log_std.is_none()) {
            throw py::value_error("log_std is for diag_gaussian, and only for that");
        }
        if (!log_std.is_none()) {
            const auto given =
                input_vector<float>(log_std, "log_std", static_cast<py::ssize_t>(network_.outputs()));
            log_std_.assign(given.begin(), given.end());
        }
    }

    std::size_t inputs() const { return network_.inputs(); }
    std::size_t num_params() const { return network_.outputs() + log_std_.size(); }
    bool discrete() const { return kind_ == "categorical"; }
    /// Numbers of one action.
    std::size_t action_size() const { return discrete() ? 1 : network_.outputs(); }
    py::dtype action_dtype() const {
        if (discrete()) {
            return py::dtype::of<std::int64_t>();
        }
        return log_std_.empty() ? py::dtype::of<std::int8_t>() : py::dtype::of<float>();
    }

    /// Parameters, actions and their log-probabilities for some rows; `actions` are of `action_dtype`.
    void draw(MatrixView<const float> obs, const NoiseKeys& keys, MatrixView<float> params, void* actions,
              std::span<float> log_probs) const {
        const std::size_t rows = obs.rows();
        const std::size_t size = action_size();
        const auto chosen = [&]<typename T>(T* first) {
            return MatrixView<T>({first, checked_product(rows, size)}, rows, size);
        };
        if (!log_std_.empty()) {
            gaussian_params(obs, params);
            sample_diag_gaussian(as_input(params), keys, chosen(static_cast<float*>(actions)), log_probs);
            return;
        }
        network_.run(obs, params);
        if (!discrete()) {
            sample_bernoulli(as_input(params), keys, chosen(static_cast<std::int8_t*>(actions)), log_probs);
            return;
        }
        const auto indices = chosen(static_cast<std::int64_t*>(actions));
        const std::array<std::size_t, 1> sizes = {network_.outputs()};
        sample_categorical(as_input(params), sizes, keys, indices, log_probs);
        for (std::size_t row = 0; row < rows; ++row) {
            indices.row(row)[0] += start_;
        }
    }

  private:
    static MatrixView<const float> as_input(MatrixView<float> matrix) {
        const std::size_t values = matrix.rows() * matrix.cols();
        return {{values == 0 ? nullptr : matrix.row(0).data(), values}, matrix.rows(), matrix.cols()};
    }

    void gaussian_params(MatrixView<const float> obs, MatrixView<float> params) const {
        std::vector<float> means(checked_product(obs.rows(), log_std_.size()));
        const MatrixView<float> out(means, obs.rows(), log_std_.size());
        network_.run(obs, out);
        for (std::size_t row = 0; row < obs.rows(); ++row) {
            std::ranges::copy(out.row(row), params.row(row).begin());
            std::ranges::copy(log_std_, params.row(row).subspan(log_std_.size()).begin());
        }
    }

    py::object network_object_;
    const Network& network_;
    std::string kind_;
    std::vector<float> log_std_;
    std::int64_t start_;
};

/// An array [steps, n, ...] of which one step after the other is taken; it is kept alive.
template <typename T>
class Steps {
  public:
    Steps(const py::object& object, const char* name, std::size_t steps, std::size_t rows, std::size_t cols)
        : array_(checked_array(object, name, py::dtype::of<T>())), rows_(rows), cols_(cols) {
        const auto wanted = static_cast<py::ssize_t>(checked_product(checked_product(steps, rows), cols));
        if ((array_.flags() & py::array::c_style) == 0 || array_.size() != wanted) {
            throw py::value_error(std::string(name) + " has shape " + text_of(array_.attr("shape")) +
                                  "; expected " + std::to_string(wanted) + " numbers in C order");
        }
        check_writeable(array_, name);
    }

    MatrixView<T> matrix(std::size_t step) { return {{data(step), rows_ * cols_}, rows_, cols_}; }
    std::span<T> row(std::size_t step) { return {data(step), rows_ * cols_}; }
    T* data(std::size_t step) { return static_cast<T*>(array_.mutable_data()) + (step * rows_ * cols_); }
    const py::array& array() const { return array_; }

  private:
    py::array array_;
    std::size_t rows_;
    std::size_t cols_;
};

/// Steps of environments and a policy, recorded as they come.
class Collector {
  public:
    Collector(py::object environments, py::object drawing, const py::object& seed, const py::object& env_ids,
              const py::object& noise_steps, py::object singles, const py::object& stop,
              const py::dict& record)
        : environments_object_(std::move(environments)),
          drawing_object_(std::move(drawing)),
          environments_(py::cast<const Environments&>(environments_object_)),
          drawing_(py::cast<const Drawing&>(drawing_object_)),
          rows_(static_cast<std::size_t>(environments_.count())),
          steps_(static_cast<std::size_t>(py::len(record["rewards"]))),
          seed_(checked_count(seed, "seed", std::numeric_limits<std::uint64_t>::max())),
          env_ids_(env_ids, "env_ids", 1, rows_, 1),
          noise_steps_(noise_steps, "steps", 1, rows_, 1),
          singles_(std::move(singles)),
          stop_(stop, "stop", 1, 1, 1),
          obs_(record["obs"], "obs", steps_ + 1, rows_, drawing_.inputs()),
          rewards_(record["rewards"], "rewards", steps_, rows_, 1),
          terminations_(record["terminations"], "terminations", steps_, rows_, 1),
          truncations_(record["truncations"], "truncations", steps_, rows_, 1),
          log_probs_(record["log_probs"], "log_probs", steps_, rows_, 1),
          params_(record["params"], "params", steps_, rows_, drawing_.num_params()),
          actions_(checked_array(record["actions"], "actions", drawing_.action_dtype())) {
        const auto wanted = steps_ * rows_ * drawing_.action_size();
        if ((actions_.flags() & py::array::c_style) == 0 ||
            static_cast<std::size_t>(actions_.size()) != wanted) {
            throw py::value_error("actions has shape " + text_of(actions_.attr("shape")) + "; expected " +
                                  std::to_string(wanted) + " numbers in C order");
        }
        check_writeable(actions_, "actions");
    }

    /// Goes on in step `step` with the environments from `first` on; if that is 0, the policy acts before.
    ///
    /// Returns where it stopped: (`until`, 0); or a step and the row whose episode it ended; or a step and
    /// how many rows there are, where their observations could not be copied; or a step before which it
    /// stopped and a negative number: -1 where the policy could not act, -2 with `stop` set.
    static constexpr int kNotActed = -1;
    static constexpr int kStopped = -2;

    py::tuple run(py::ssize_t step, py::ssize_t first, py::ssize_t until) {
        const py::ssize_t count = environments_.count();
        checked_place(until, "until", 0, static_cast<py::ssize_t>(steps_));
        checked_place(step, "step", 0, until);
        checked_place(first, "first", 0, count);
        for (; step < until; ++step, first = 0) {
            const auto t = static_cast<std::size_t>(step);
            environments_.progress()[kStep] = step;
            if (first == 0) {
                if (stop_.row(0)[0]) {
                    return py::make_tuple(step, kStopped);
                }
                if (!act(t)) {
                    return py::make_tuple(step, kNotActed);
                }
            }
            const py::ssize_t row = environments_.step(
                first, now_, Rows(py::reinterpret_steal<py::array>(at(obs_.array(), step + 1))),
                rewards_.row(t), terminations_.row(t), truncations_.row(t), {}, py::none());
            if (row < count || environments_.progress()[kNotCopied] != 0) {
                return py::make_tuple(step, row);
            }
        }
        return py::make_tuple(until, 0);
    }

    /// The single actions of the step in work.
    const py::list& singles() const { return now_; }

  private:
    static PyObject* at(const py::array& array, py::ssize_t step) {
        PyObject* row = PySequence_GetItem(array.ptr(), step);
        if (row == nullptr) {
            throw py::error_already_set();
        }
        return row;
    }

    bool act(std::size_t t) {
        ++environments_.progress()[kCalls];
        const auto step = static_cast<py::ssize_t>(t);
        try {
            drawing_.draw({obs_.row(t), rows_, drawing_.inputs()},
                          {seed_, env_ids_.row(0), noise_steps_.row(0)}, params_.matrix(t),
                          actions_.mutable_data(step), log_probs_.row(t));
        } catch (const std::invalid_argument&) {
            return false;
        }
        for (std::int64_t& noise_step : noise_steps_.row(0)) {
            ++noise_step;
        }
        const py::object drawn = stolen(at(actions_, step));
        now_ = checked_list(singles_(drawn), "single actions", environments_.count());
        return true;
    }

    py::object environments_object_;
    py::object drawing_object_;
    const Environments& environments_;
    const Drawing& drawing_;
    std::size_t rows_;
    std::size_t steps_;
    std::uint64_t seed_;
    Steps<std::int64_t> env_ids_;
    Steps<std::int64_t> noise_steps_;
    py::object singles_;
    py::list now_;
    Steps<bool> stop_;
    Steps<float> obs_;
    Steps<double> rewards_;
    Steps<bool> terminations_;
    Steps<bool> truncations_;
    Steps<float> log_probs_;
    Steps<float> params_;
    py::array actions_;
};

}  // namespace

void bind_step(py::module_& m) {
    py::class_<Environments>(m, "Environments", "Environments that are stepped one after the other.")
        .def(py::init<const py::object&, const py::object&, const py::object&, const py::object&,
                      py::object>(),
             py::arg("steps"), py::arg("observations"), py::arg("limits"), py::arg("progress"),
             py::arg("number"))
        .def(
            "step", &step_rows, py::arg("first"), py::arg("actions"), py::arg("out"), py::arg("rewards"),
            py::arg("terminations"), py::arg("truncations"), py::arg("plan") = py::none(),
            py::arg("keep") = py::none(),
            "Steps environments from `first` on, up to one whose episode ends: its number, or how many there "
            "are. `plan` [n]: 0 steps, 1 stops before the row, 2 passes it over. `keep(row, info)` gets "
            "infos "
            "that are not empty.");
    py::class_<Drawing>(m, "Drawing", "A policy that is a network and a distribution to draw from.")
        .def(py::init<const py::object&, const std::string&, const py::object&, std::int64_t>(),
             py::arg("network"), py::arg("kind"), py::arg("log_std") = py::none(), py::arg("start") = 0)
        .def_property_readonly("inputs", &Drawing::inputs, "Numbers of an observation.")
        .def_property_readonly("num_params", &Drawing::num_params, "Parameters for an observation.")
        .def_property_readonly("action_dtype", &Drawing::action_dtype, "Of the actions.")
        .def_property_readonly("action_size", &Drawing::action_size, "Numbers of an action.");
    py::class_<Collector>(m, "Collector", "Steps of environments and a policy, recorded as they come.")
        .def(py::init<py::object, py::object, const py::object&, const py::object&, const py::object&,
                      py::object, const py::object&, const py::dict&>(),
             py::arg("environments"), py::arg("drawing"), py::arg("seed"), py::arg("env_ids"),
             py::arg("steps"), py::arg("singles"), py::arg("stop"), py::arg("record"))
        .def("run", &Collector::run, py::arg("step"), py::arg("first"), py::arg("until"),
             "Goes on from a step and row, and returns where it stopped.")
        .def_property_readonly("singles", &Collector::singles, "The single actions of the step in work.");
}

}  // namespace clusterenv::bindings
