// Runs independent pieces of work on the machine's cores. Results go to their own index, so they do
// not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace tidemark {

// Calls work(i) for every i < count. Throws: the exception of the smallest i that threw.
template <class Work>
void parallel_for(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < std::min(cores, count); ++t) threads.emplace_back(run);
    run();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tidemark
