// One callable of several lambdas, for std::visit.
#pragma once

namespace tidemark {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace tidemark
