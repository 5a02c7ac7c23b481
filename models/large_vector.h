// A vector for tables of megabytes: a new one is left as it is (no zeros are written), and lies on
// huge pages where the system has them. A run writes its tables once, so page faults and zeros cost
// as much as what is computed into them.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tidemark {

template <class T>
class LargeAllocator {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  using value_type = T;

  LargeAllocator() = default;
  template <class U>
  LargeAllocator(const LargeAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count * sizeof(T) < kHugePage) return std::allocator<T>().allocate(count);
    const std::size_t bytes = (count * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage;
    void* const memory = ::operator new (bytes, std::align_val_t{kHugePage});
#ifdef __linux__
    madvise(memory, bytes, MADV_HUGEPAGE);  // advice: nothing depends on whether it is taken
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    if (count * sizeof(T) < kHugePage) return std::allocator<T>().deallocate(memory, count);
    ::operator delete (memory, std::align_val_t{kHugePage});
  }

  // Without a value: left as it is.
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }

  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
};

template <class T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace tidemark
