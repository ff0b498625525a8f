// Parameter structs as Python classes, for the launch plans of dflash_ops._host.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace dflash::bindings {

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// A params struct as a Python class: keyword arguments set fields, pointers are integers.
template <typename Params>
class ParamsClass {
 public:
  ParamsClass(pybind11::module_& module, const char* name) : type_(module, name) {
    type_.def(pybind11::init([](const pybind11::kwargs& fields) {
      auto params = std::make_unique<Params>();
      const pybind11::object self = pybind11::cast(params.get(), pybind11::return_value_policy::reference);
      for (const auto& [field, value] : fields) pybind11::setattr(self, field, value);
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
  pybind11::class_<Params> type_;
};

}  // namespace dflash::bindings
