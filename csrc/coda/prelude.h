#pragma once
// What CUTLASS expects of the host's standard library and NVRTC does not have.
#include <cuda/std/cstdint>
#include <cuda/std/cstddef>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

namespace std {
template <class...> using void_t = void;
template <class T> inline constexpr bool is_pointer_v = cuda::std::is_pointer_v<T>;
template <class T> inline constexpr bool is_const_v = cuda::std::is_const_v<T>;
// NVRTC declares these for its own structured bindings, but not for const types.
template <class... T> struct tuple_size;
template <size_t I, class... T> struct tuple_element;
template <class T> struct tuple_size<const T> : tuple_size<T> {};
template <size_t I, class T> struct tuple_element<I, const T> { using type = const typename tuple_element<I, T>::type; };
}  // namespace std

// offsetof as a constant expression, which NVRTC's own is not.
#define CODA_OFFSET(T, member) __INTADDR__(&static_cast<T*>(nullptr)->member)
#define CODA_UNROLL _Pragma("unroll")
