// What the host module's plan functions take: params structs as Python classes, pointers as integers.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace dflash::bindings {

namespace py = pybind11;

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// A params struct as a Python class: keyword arguments set fields, pointers are integers.
template <typename Params>
class ParamsClass {
 public:
  ParamsClass(py::module_& module, const char* name) : type_(module, name) {
    type_.def(py::init([](const py::kwargs& fields) {
      auto params = std::make_unique<Params>();
      const py::object self = py::cast(params.get(), py::return_value_policy::reference);
      for (const auto& [field, value] : fields) py::setattr(self, field, value);
      return params;
    }));
  }

  template <typename Member>
  ParamsClass& field(const char* name, Member Params::* member) {
    if constexpr (std::is_pointer_v<Member>) {
      type_.def_property(
          name, [member](const Params& params) { return reinterpret_cast<uintptr_t>(params.*member); },
          [member](Params& params, uintptr_t address) { params.*member = reinterpret_cast<Member>(address); });
    } else {
      type_.def_readwrite(name, member);
    }
    return *this;
  }

  template <typename Get, typename Set>
  ParamsClass& property(const char* name, const Get& get, const Set& set) {
    type_.def_property(name, get, set);
    return *this;
  }

 private:
  py::class_<Params> type_;
};

}  // namespace dflash::bindings
