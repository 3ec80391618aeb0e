// What each translation unit adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace clusterenv::bindings {

void bind_kl(pybind11::module_& m);
void bind_network(pybind11::module_& m);
void bind_pack(pybind11::module_& m);
void bind_rows(pybind11::module_& m);
void bind_sample(pybind11::module_& m);
void bind_shared(pybind11::module_& m);
void bind_step(pybind11::module_& m);

}  // namespace clusterenv::bindings
