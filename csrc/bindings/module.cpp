#include "bindings/module.hpp"

PYBIND11_MODULE(_core, m) {
    m.doc() = "Kernels of ClusterEnv in C++; `clusterenv.native` is the only module that imports this one.";
    clusterenv::bindings::bind_kl(m);
    clusterenv::bindings::bind_network(m);
    clusterenv::bindings::bind_pack(m);
    clusterenv::bindings::bind_rows(m);
    clusterenv::bindings::bind_sample(m);
    clusterenv::bindings::bind_shared(m);
    clusterenv::bindings::bind_step(m);
}
