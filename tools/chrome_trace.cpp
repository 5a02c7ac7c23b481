#include "tools/chrome_trace.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tidemark {
namespace {

// Threads of a stage: the engine's streams, and three that only the trace has.
constexpr const char* kStreams[kNumStreams] = {
    "compute",         "shared expert", "tensor-parallel", "context-parallel",
    "expert-parallel", "data-parallel", "device to host",  "host to device"};
constexpr int kSlotThread = -2;
constexpr int kBesideThread = -1;  // what a fused slot runs backward
constexpr int kTransferThread = kNumStreams;

std::string microseconds(std::int64_t ns) {
  std::string decimals = std::to_string(ns % 1000);
  decimals.insert(0, 3 - decimals.size(), '0');
  return std::to_string(ns / 1000) + "." + decimals;
}

std::string quoted(std::string_view key, std::string_view text) {
  return "\"" + std::string(key) + "\":\"" + std::string(text) + "\"";
}

std::string field(std::string_view key, std::int64_t value) {
  return "\"" + std::string(key) + "\":" + std::to_string(value);
}

struct Span {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

// Names of operators and streams are our own and need no escapes.
class EventWriter {
 public:
  explicit EventWriter(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  }
  ~EventWriter() { out_ << "\n]}\n"; }
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void name_process(std::int64_t pid, const std::string& name) {
    event(quoted("ph", "M") + "," + field("pid", pid) + "," + quoted("name", "process_name") +
          ",\"args\":{" + quoted("name", name) + "}");
    event(quoted("ph", "M") + "," + field("pid", pid) + "," + quoted("name", "process_sort_index") +
          ",\"args\":{" + field("sort_index", pid) + "}");
  }
  void name_thread(std::int64_t pid, int thread, const std::string& name) {
    const std::string head = quoted("ph", "M") + "," + place(pid, thread) + ",";
    event(head + quoted("name", "thread_name") + ",\"args\":{" + quoted("name", name) + "}");
    event(head + quoted("name", "thread_sort_index") + ",\"args\":{" +
          field("sort_index", tid(thread)) + "}");
  }
  void complete(std::int64_t pid, int thread, Span span, const std::string& name,
                const std::string& arguments = "") {
    event(quoted("ph", "X") + "," + place(pid, thread) + ",\"ts\":" + microseconds(span.start) +
          ",\"dur\":" + microseconds(span.end - span.start) + "," + quoted("name", name) +
          (arguments.empty() ? "" : ",\"args\":{" + arguments + "}"));
  }
  void counter(std::int64_t pid, std::int64_t ns, Bytes bytes) {
    event(quoted("ph", "C") + "," + field("pid", pid) + ",\"ts\":" + microseconds(ns) + "," +
          quoted("name", "allocated bytes") + ",\"args\":{" + field("bytes", bytes.value) + "}");
  }
  // `phase`: "s" where an arrow starts, "f" where it ends; both within a complete event.
  void flow(const char* phase, std::int64_t pid, int thread, std::int64_t ns, std::int64_t id) {
    event(quoted("ph", phase) + (*phase == 'f' ? ",\"bp\":\"e\"," : ",") + place(pid, thread) +
          ",\"ts\":" + microseconds(ns) + "," + field("id", id) + "," + quoted("name", "transfer") +
          "," + quoted("cat", "pipeline"));
  }

 private:
  static std::int64_t tid(int thread) { return thread - kSlotThread; }
  static std::string place(std::int64_t pid, int thread) {
    return field("pid", pid) + "," + field("tid", tid(thread));
  }
  void event(const std::string& fields) {
    out_ << (std::exchange(first_, false) ? "\n{" : ",\n{") << fields << '}';
  }

  std::ostream& out_;
  bool first_ = true;
};

class TraceRecorder : public Recorder {
 public:
  TraceRecorder(EventWriter& writer, const Job& job, const Simulation& simulation)
      : writer_(writer), simulation_(simulation) {
    for (std::size_t i = 0; i < simulation.program.stages.size(); ++i) {
      const auto stage = static_cast<std::int64_t>(i);
      const StageResult& s = simulation.result.stages[i];
      writer_.name_process(stage, "stage " + std::to_string(stage));
      writer_.name_thread(stage, kSlotThread, "slots");
      if (!simulation.program.stages[i].fused.empty()) {
        writer_.name_thread(stage, kBesideThread, "backward beside a forward");
      }
      for (int stream = 0; stream < kNumStreams; ++stream) {
        writer_.name_thread(stage, stream, kStreams[stream]);
      }
      writer_.name_thread(stage, kTransferThread, "pipeline transfers");
      Cursor cursor;
      cursor.lane = static_cast<std::size_t>(s.hottest_lane);
      cursor.allocated = allocated_after_events(job, simulation.program.stages[i].graph, s.sequence,
                                                simulation.rows, s.hottest_lane);
      cursors_.push_back(std::move(cursor));
    }
  }

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    Cursor& at = cursors_[static_cast<std::size_t>(stage)];
    const ProgramOp& operation = slot.ops[static_cast<std::size_t>(op)];
    const Span span{start[at.lane], end[at.lane]};
    if (op == 0) {
      finish_slot(stage);
      at.slots[0] = at.slots[1] = {};
      at.slot_step = step;
      at.next_operator = 0;
    }
    const bool is_data_parallel = operation.operator_index < 0;
    if (!is_data_parallel) {
      Span& slot_span = at.slots[operation.beside ? 1 : 0];
      if (slot_span.end == 0) slot_span.start = span.start;
      slot_span.end = std::max(slot_span.end, span.end);
      count_memory(stage, step, at.next_operator++, span.start);
    }
    if (span.start == span.end) return;
    const int thread = static_cast<int>(operation.stream);
    if (is_data_parallel) {
      writer_.complete(stage, thread, span, "bucket");
      return;
    }
    const Operator& source = simulation_.program.stages[static_cast<std::size_t>(stage)].graph.at(
        static_cast<std::size_t>(operation.operator_index));
    writer_.complete(stage, thread, span, source.name,
                     source.layer < 0 ? "" : field("layer", source.layer));
  }

  void on_transfer(std::int32_t stage, std::int32_t step, std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    finish_slot(stage);
    const Cursor& at = cursors_[static_cast<std::size_t>(stage)];
    const Span span{start[at.lane], end[at.lane]};
    count_memory(stage, step, 0, span.start);
    const Transfer* transfer = std::get_if<Transfer>(&this->step(stage, step));
    writer_.complete(stage, kTransferThread, span,
                     transfer == nullptr  ? "wait"
                     : transfer->blocking ? "transfer"
                                          : "post transfer");
    if (transfer == nullptr) return;
    const std::int64_t middle = span.start + (span.end - span.start) / 2;
    for (const bool gradient : {false, true}) {
      const ChunkTensor& out = gradient ? transfer->send_gradient : transfer->send_activation;
      const ChunkTensor& in = gradient ? transfer->receive_gradient : transfer->receive_activation;
      if (out.valid()) {
        const std::int64_t to = receiver(stage, out.chunk, gradient);
        writer_.flow("s", stage, kTransferThread, span.start, arrow(to, gradient, out.microbatch));
      }
      if (in.valid()) {
        const std::int64_t to = virtual_stage(stage, in.chunk);
        writer_.flow("f", stage, kTransferThread, middle, arrow(to, gradient, in.microbatch));
      }
    }
  }

  void finish(const IterationTimes& times) {
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      const auto stage = static_cast<std::int64_t>(i);
      finish_slot(static_cast<std::int32_t>(i));
      const IterationEnd& end = simulation_.program.stages[i].end;
      const std::int64_t finished = times.units[0].stages[i].finish_ns[cursors_[i].lane];
      const std::int64_t stepped = times.pipeline_ns + end.optimizer_ns;
      const int data = static_cast<int>(Stream::kDataComm);
      const int compute = static_cast<int>(Stream::kCompute);
      tail(stage, data, {finished, finished + end.reduce_ns}, "gradient reduction");
      tail(stage, compute, {times.pipeline_ns, stepped}, "optimizer step");
      tail(stage, data, {times.iteration_ns - end.gather_ns, times.iteration_ns},
           "parameter gather");
    }
  }

 private:
  // How far a stage has been written.
  struct Cursor {
    std::size_t lane = 0;
    std::vector<Bytes> allocated;  // after each event of the memory sequence
    std::size_t event = 0;         // the next of them
    std::int64_t counted_ns = 0;   // time of the last counter
    Span slots[2];                 // and what runs beside
    std::int32_t slot_step = -1;
    std::int32_t next_operator = 0;  // position in the slot, as the memory sequence counts
  };

  const Step& step(std::int64_t stage, std::int32_t step) const {
    return simulation_.program.schedule
        .stages[static_cast<std::size_t>(stage)][static_cast<std::size_t>(step)];
  }

  void tail(std::int64_t stage, int thread, Span span, const char* name) {
    if (span.start < span.end) writer_.complete(stage, thread, span, name);
  }

  void finish_slot(std::int32_t stage) {
    Cursor& at = cursors_[static_cast<std::size_t>(stage)];
    if (at.slot_step < 0) return;
    const Slot& slot = std::get<Slot>(step(stage, std::exchange(at.slot_step, -1)));
    const ChunkTensor own{slot.chunk, slot.microbatch};
    const char* pass = slot.forward().valid()                   ? "F"
                       : slot.kind == SlotKind::kBackwardWeight ? "W"
                                                                : "B";
    writer_.complete(stage, kSlotThread, at.slots[0], slot_name(pass, own));
    if (slot.beside.valid()) {
      writer_.complete(stage, kBesideThread, at.slots[1], slot_name("B", slot.beside));
    }
  }
  std::string slot_name(const char* pass, ChunkTensor t) const {
    std::string name = pass + std::to_string(t.microbatch);
    if (simulation_.program.schedule.chunks > 1) name += " chunk " + std::to_string(t.chunk);
    return name;
  }

  // The highest bytes of the events of one operator, where it starts.
  void count_memory(std::int32_t stage, std::int32_t step, std::int32_t op, std::int64_t start) {
    Cursor& at = cursors_[static_cast<std::size_t>(stage)];
    const StageResult& s = simulation_.result.stages[static_cast<std::size_t>(stage)];
    Bytes highest;
    for (; at.event < s.sequence.events.size(); ++at.event) {
      const MemoryEvent& e = s.sequence.events[at.event];
      if (e.step != step || e.op != op) break;
      highest = std::max(highest, at.allocated[at.event]);
    }
    if (highest == Bytes(0)) return;
    at.counted_ns = std::max(at.counted_ns, start);
    writer_.counter(stage, at.counted_ns, s.resident_bytes + highest);
  }

  std::int64_t virtual_stage(std::int64_t stage, std::int64_t chunk) const {
    return simulation_.program.schedule.virtual_stage(static_cast<std::int32_t>(stage),
                                                      static_cast<std::int32_t>(chunk));
  }
  // The virtual stage that a chunk's activation or gradient goes to.
  std::int64_t receiver(std::int64_t stage, std::int64_t chunk, bool gradient) const {
    return virtual_stage(stage, chunk) + (gradient ? -1 : 1);
  }
  // One number for each message.
  std::int64_t arrow(std::int64_t receiver, bool gradient, std::int64_t microbatch) const {
    return (2 * receiver + (gradient ? 1 : 0)) * simulation_.program.schedule.microbatches +
           microbatch;
  }

  EventWriter& writer_;
  const Simulation& simulation_;
  std::vector<Cursor> cursors_;
};

}  // namespace

void write_chrome_trace(std::ostream& out, const Job& job, const Simulation& simulation) {
  EventWriter writer(out);
  TraceRecorder recorder(writer, job, simulation);
  Recorder* const recorders[] = {&recorder};
  recorder.finish(run_units(simulation.program, {&simulation.rows, 1}, recorders));
}

}  // namespace tidemark
