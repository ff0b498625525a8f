#include <algorithm>

#include "bindings/checks.h"

namespace dflash::bindings {
namespace {

// Addresses [begin, end) from a tensor's first element to the end of its last.
struct Extent {
  const Tensor* tensor;
  const Argument* argument;
  size_t index;
  int64_t begin, end;
};

// Of the dtypes that ops take.
int64_t element_size(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Long:
      return 8;
    case ScalarType::Float:
    case ScalarType::Int:
      return 4;
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    default:
      return 1;
  }
}

void append_extents(const Argument& argument, std::vector<Extent>* extents) {
  for (size_t i = 0; i < argument.size(); ++i) {
    const Tensor& tensor = argument[i];
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) last += (tensor.size(axis) - 1) * tensor.stride(axis);
    const auto begin = reinterpret_cast<int64_t>(tensor.data_ptr());
    extents->push_back({&tensor, &argument, i, begin, begin + (last + 1) * element_size(tensor)});
  }
}

// stride * t for a t from least to most.
struct Term {
  int64_t stride, least, most;
};

// Steps of a search that ends early for all but contrived strides; past it, memory counts as separate.
constexpr int kMostSteps = 4096;

// Whether the terms, sorted by falling stride, can add up to `sum`.
bool can_be(int64_t sum, const std::vector<Term>& terms, size_t first, int* steps) {
  if (first == terms.size()) return sum == 0;
  if (++*steps > kMostSteps) return false;
  int64_t rest_least = 0, rest_most = 0;
  for (size_t i = first + 1; i < terms.size(); ++i) {
    rest_least += terms[i].stride * terms[i].least;
    rest_most += terms[i].stride * terms[i].most;
  }
  const Term& term = terms[first];
  // Of the multiples, those that leave what the other terms can reach; sums are at most a storage's size.
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b < 0); };
  const int64_t least = std::max(term.least, -floor_div(rest_most - sum, term.stride));
  const int64_t most = std::min(term.most, floor_div(sum - rest_least, term.stride));
  for (int64_t t = least; t <= most && *steps <= kMostSteps; ++t) {
    if (can_be(sum - t * term.stride, terms, first + 1, steps)) return true;
  }
  return false;
}

// Whether some byte belongs to both: the distance of the first bytes is then a sum of steps of both.
bool share_bytes(const Extent& left, const Extent& right) {
  std::vector<Term> terms{{1, 1 - element_size(*right.tensor), element_size(*left.tensor) - 1}};
  const auto add = [&](const Tensor& tensor, int64_t sign) {
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      const int64_t stride = tensor.stride(axis) * element_size(tensor), steps = tensor.size(axis) - 1;
      if (stride == 0 || steps == 0) continue;
      const int64_t least = sign < 0 ? -steps : 0, most = sign < 0 ? 0 : steps;
      const auto same =
          std::find_if(terms.begin(), terms.end(), [&](const Term& term) { return term.stride == stride; });
      if (same != terms.end()) {
        same->least += least;
        same->most += most;
      } else {
        terms.push_back({stride, least, most});
      }
    }
  };
  add(*left.tensor, 1);
  add(*right.tensor, -1);
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.stride > b.stride; });
  int steps = 0;
  return can_be(right.begin - left.begin, terms, 0, &steps);
}

}  // namespace

void check_separate(const char* op, std::initializer_list<Argument> written, std::initializer_list<Argument> read) {
  std::vector<Extent> extents;
  for (const Argument& argument : written) append_extents(argument, &extents);
  const size_t written_count = extents.size();
  for (const Argument& argument : read) append_extents(argument, &extents);
  for (size_t i = 0; i < written_count; ++i) {
    for (size_t j = i + 1; j < extents.size(); ++j) {
      const Extent &output = extents[i], &other = extents[j];
      if (output.end <= other.begin || other.end <= output.begin || !share_bytes(output, other)) continue;
      raise(op, output.argument->name(output.index),
            "memory of its own, none of " + other.argument->name(other.index) + "'s", to_string(*output.tensor));
    }
  }
}

}  // namespace dflash::bindings
