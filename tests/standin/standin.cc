// A stand-in for a device: a plug-in for Paddle's CPU wheel, with memory apart from the host's, and two cards.
//
// Paddle runs an operator without a kernel on the CPU, with its inputs and outputs copied. What it shows:
//   memory       starts as 0xff, which is NaN, and cannot be touched outside of copies: SIGSEGV ends who tries
//   late copies  a queued copy is done when somebody waits for it, and reads its source only then if it is large
//   collectives  through memory that the processes share
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_registry.h"

namespace {

std::recursive_mutex lock;  // of all that follows
// ---- memory -------------------------------------------------------------------------------------------------------------

std::map<char*, size_t> blocks;  // of device memory: start and bytes, whole pages
thread_local int current = 0;

size_t whole_pages(size_t bytes) {
  size_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

// Opens the block that an address lies in while it lives.
class Open {
 public:
  explicit Open(const void* address) {
    auto next = blocks.upper_bound((char*)address);
    if (next == blocks.begin()) return;
    auto block = std::prev(next);
    if ((char*)address >= block->first + block->second) return;
    start_ = block->first;
    bytes_ = block->second;
    mprotect(start_, bytes_, PROT_READ | PROT_WRITE);
  }
  ~Open() {
    if (start_) mprotect(start_, bytes_, PROT_NONE);
  }

 private:
  char* start_ = nullptr;
  size_t bytes_ = 0;
};

void copy(void* to, const void* from, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(lock);
  Open target(to);
  Open source(from);
  memmove(to, from, bytes);
}

C_Status allocate(const C_Device, void** address, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(lock);
  bytes = whole_pages(bytes ? bytes : 1);
  char* block = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return C_FAILED;
  memset(block, 0xff, bytes);
  mprotect(block, bytes, PROT_NONE);
  blocks[block] = bytes;
  *address = block;
  return C_SUCCESS;
}
C_Status allocate_on_host(const C_Device, void** address, size_t bytes) {
  *address = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *address ? C_SUCCESS : C_FAILED;
}
C_Status release_on_host(const C_Device, void* address, size_t) {
  free(address);
  return C_SUCCESS;
}
C_Status fill(const C_Device, void* address, unsigned char value, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(lock);
  Open target(address);
  memset(address, value, bytes);
  return C_SUCCESS;
}
C_Status statistics(const C_Device, size_t* total, size_t* free) {
  *total = *free = 8ul << 30;
  return C_SUCCESS;
}
C_Status chunk(const C_Device, size_t* bytes) {
  *bytes = 512;
  return C_SUCCESS;
}

// ---- streams, events and queued copies ------------------------------------------------------------------------------------

struct Stream {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    std::vector<char> staged;  // what `from` had when the copy was queued; empty: it is read when the copy is done
  };
  std::deque<Copy> queue;
  long done = 0;  // copies
  void finish() {
    std::lock_guard<std::recursive_mutex> held(lock);
    while (!queue.empty()) {
      Copy next = queue.front();
      queue.pop_front();
      done++;
      copy(next.to, next.staged.empty() ? next.from : next.staged.data(), next.bytes);
    }
  }
};
struct Event {
  Stream* stream = nullptr;
  long place = 0;  // copies of the stream before it
};
std::vector<Stream*> streams;

void finish_all() {
  std::lock_guard<std::recursive_mutex> held(lock);
  for (Stream* stream : streams) stream->finish();
}
C_Status release(const C_Device, void* address, size_t) {
  std::lock_guard<std::recursive_mutex> held(lock);
  finish_all();  // a queued copy may be of this memory
  auto block = blocks.find((char*)address);
  munmap(block->first, block->second);
  blocks.erase(block);
  return C_SUCCESS;
}
C_Status make_stream(const C_Device, C_Stream* handle) {
  std::lock_guard<std::recursive_mutex> held(lock);
  streams.push_back(new Stream());
  *handle = (C_Stream)streams.back();
  return C_SUCCESS;
}
C_Status drop_stream(const C_Device, C_Stream handle) {
  ((Stream*)handle)->finish();
  return C_SUCCESS;
}
C_Status make_event(const C_Device, C_Event* handle) {
  *handle = (C_Event) new Event();
  return C_SUCCESS;
}
C_Status drop_event(const C_Device, C_Event handle) {
  delete (Event*)handle;
  return C_SUCCESS;
}
C_Status query_stream(const C_Device, C_Stream handle) { return ((Stream*)handle)->queue.empty() ? C_SUCCESS : C_FAILED; }
C_Status query_event(const C_Device, C_Event handle) {
  auto* event = (Event*)handle;
  return !event->stream || event->place <= event->stream->done ? C_SUCCESS : C_FAILED;
}
C_Status record(const C_Device, C_Stream handle, C_Event event) {
  auto* stream = (Stream*)handle;
  *(Event*)event = {stream, stream->done + (long)stream->queue.size()};
  return C_SUCCESS;
}
C_Status stream_waits(const C_Device, C_Stream, C_Event event) {
  if (Stream* stream = ((Event*)event)->stream) stream->finish();
  return C_SUCCESS;
}
C_Status wait_device(const C_Device) {
  finish_all();
  return C_SUCCESS;
}
C_Status wait_stream(const C_Device, C_Stream stream) {
  ((Stream*)stream)->finish();
  return C_SUCCESS;
}
C_Status wait_event(const C_Device, C_Event event) {
  return stream_waits(nullptr, nullptr, event);
}
C_Status call_back(const C_Device device, C_Stream stream, C_Callback function, void* data) {
  ((Stream*)stream)->finish();
  C_Status status;
  function(device, stream, data, &status);
  return status;
}

constexpr size_t STAGED = 1 << 16;
C_Status copy_now(const C_Device, void* to, const void* from, size_t bytes) {
  finish_all();
  copy(to, from, bytes);
  return C_SUCCESS;
}
template <bool to_device>
C_Status copy_queued(const C_Device, C_Stream stream, void* to, const void* from, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(lock);
  std::vector<char> staged;
  // Drivers keep the bytes of small sources, and Paddle relies on it.
  if (to_device && bytes <= STAGED) staged.assign((const char*)from, (const char*)from + bytes);
  ((Stream*)stream)->queue.push_back({to, from, bytes, std::move(staged)});
  return C_SUCCESS;
}
C_Status copy_between(const C_Device, const C_Device, void* to, const void* from, size_t bytes) {
  return copy_now(nullptr, to, from, bytes);
}

// ---- the device -----------------------------------------------------------------------------------------------------------

C_Status nothing() { return C_SUCCESS; }
C_Status nothing_of(const C_Device) { return C_SUCCESS; }
C_Status set_device(const C_Device device) {
  current = device->id;
  return C_SUCCESS;
}
C_Status get_device(const C_Device device) {
  device->id = current;
  return C_SUCCESS;
}
C_Status cards(size_t* number) {
  *number = 2;
  return C_SUCCESS;
}
C_Status list(size_t* numbers) {
  for (size_t card = 0; card < 2; card++) numbers[card] = card;
  return C_SUCCESS;
}
C_Status yes(const C_Device, bool* answer) {
  *answer = true;
  return C_SUCCESS;
}
C_Status version(const C_Device, size_t* number) {
  *number = 1;
  return C_SUCCESS;
}

// ---- collectives: a header and PIECE bytes of each rank in memory that all share ---------------------------------------------

constexpr size_t PIECE = 1ul << 20;
constexpr size_t HEADER = 4096;

struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> turn;
};
struct Group {
  int rank;
  int ranks;
  Shared* shared;
  char* pieces;
  char* piece(int rank) { return pieces + rank * PIECE; }
};

// Waits for all ranks.
bool meet(Group* group) {
  Shared* shared = group->shared;
  int turn = shared->turn;
  if (shared->arrived.fetch_add(1) + 1 == group->ranks) {
    shared->arrived = 0;
    shared->turn++;
  }
  while (shared->turn == turn) usleep(50);
  return true;
}

size_t width(C_DataType type) {
  switch (type) {
    case BOOL: case UINT8: case INT8: return 1;
    case FLOAT16: case BFLOAT16: case INT16: case UINT16: return 2;
    case INT64: case UINT64: case FLOAT64: return 8;
    default: return 4;
  }
}

template <class Number>
void combine(void* sums, const void* others, size_t count, C_CCLReduceOp op) {
  auto* sum = (Number*)sums;
  auto* other = (const Number*)others;
  for (size_t i = 0; i < count; i++) {
    bool takes_sum = op == MAX ? sum[i] > other[i] : sum[i] < other[i];
    if (op == MAX || op == MIN)
      sum[i] = takes_sum ? sum[i] : other[i];
    else if (op == PRODUCT)
      sum[i] *= other[i];
    else
      sum[i] += other[i];
  }
}

bool combine(void* sum, const void* other, size_t count, C_DataType type, C_CCLReduceOp op) {
  switch (type) {
    case FLOAT32: combine<float>(sum, other, count, op); return op != AVG;
    case FLOAT64: combine<double>(sum, other, count, op); return op != AVG;
    case INT64: combine<int64_t>(sum, other, count, op); return op != AVG;
    case INT32: combine<int32_t>(sum, other, count, op); return op != AVG;
    default: return false;
  }
}

C_Status name_of_group(C_CCLComm, char* name) {
  strcpy(name, "standin");
  return C_SUCCESS;
}
C_Status id_bytes(size_t* bytes) {
  *bytes = 64;
  return C_SUCCESS;
}
C_Status make_id(C_CCLRootId* id) {
  snprintf((char*)id->data, 64, "/standin-%d-%ld", getpid(), random());
  return C_SUCCESS;
}
C_Status join(size_t ranks, C_CCLRootId* id, size_t rank, C_CCLComm* handle) {
  const char* name = (const char*)id->data;
  int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  size_t bytes = HEADER + ranks * PIECE;
  if (file < 0 || ftruncate(file, bytes)) return C_FAILED;
  char* start = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  auto* group = new Group{(int)rank, (int)ranks, (Shared*)start, start + HEADER};
  meet(group);
  if (rank == 0) shm_unlink(name);
  *handle = (C_CCLComm)group;
  return C_SUCCESS;
}
C_Status leave(C_CCLComm) { return C_SUCCESS; }

// Calls step(first, bytes) for each piece of `bytes`, of whole numbers; it returns false where it fails.
template <class Step>
C_Status in_pieces(size_t bytes, size_t number, Step step) {
  size_t most = PIECE / number * number;
  for (size_t first = 0; first < bytes; first += most)
    if (!step(first, std::min(most, bytes - first))) return C_FAILED;
  return C_SUCCESS;
}

C_Status all_reduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm handle, C_Stream stream) {
  auto* group = (Group*)handle;
  size_t number = width(type);
  ((Stream*)stream)->finish();
  std::vector<char> sum(PIECE);
  return in_pieces(count * number, number, [&](size_t first, size_t bytes) {
    copy(group->piece(group->rank), (char*)from + first, bytes);
    if (!meet(group)) return false;
    memcpy(sum.data(), group->piece(0), bytes);
    for (int rank = 1; rank < group->ranks; rank++)
      if (!combine(sum.data(), group->piece(rank), bytes / number, type, op)) return false;
    copy((char*)to + first, sum.data(), bytes);
    return meet(group);
  });
}
C_Status reduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, size_t, C_CCLComm group, C_Stream stream) {
  return all_reduce(from, to, count, type, op, group, stream);
}
C_Status reduce_scatter(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm handle, C_Stream stream) {
  auto* group = (Group*)handle;
  size_t bytes = count * width(type);
  std::vector<char> whole(bytes * group->ranks);
  C_Status status = all_reduce(from, whole.data(), count * group->ranks, type, op, handle, stream);
  if (status == C_SUCCESS) copy(to, whole.data() + group->rank * bytes, bytes);
  return status;
}
C_Status broadcast(void* data, size_t count, C_DataType type, size_t root, C_CCLComm handle, C_Stream stream) {
  auto* group = (Group*)handle;
  ((Stream*)stream)->finish();
  return in_pieces(count * width(type), 1, [&](size_t first, size_t bytes) {
    if (group->rank == (int)root) copy(group->piece(0), (char*)data + first, bytes);
    if (!meet(group)) return false;
    copy((char*)data + first, group->piece(0), bytes);
    return meet(group);
  });
}
C_Status all_gather(void* from, void* to, size_t count, C_DataType type, C_CCLComm handle, C_Stream stream) {
  auto* group = (Group*)handle;
  size_t whole = count * width(type);
  ((Stream*)stream)->finish();
  return in_pieces(whole, 1, [&](size_t first, size_t bytes) {
    copy(group->piece(group->rank), (char*)from + first, bytes);
    if (!meet(group)) return false;
    for (int rank = 0; rank < group->ranks; rank++) copy((char*)to + rank * whole + first, group->piece(rank), bytes);
    return meet(group);
  });
}

// ---- the kernel `add`, which Paddle calls for gradients without copying what it adds ------------------------

// Returns the number of the element of a tensor that is broadcast to the element `at` of another one.
int64_t element(const phi::DDim& dims, const phi::DDim& whole, int64_t at) {
  int64_t number = 0, step = 1;
  for (int axis = whole.size() - 1; axis >= 0; axis--) {
    int own = axis - (whole.size() - dims.size());
    if (own >= 0) {
      number += (dims[own] == 1 ? 0 : at % whole[axis]) * step;
      step *= dims[own];
    }
    at /= whole[axis];
  }
  return number;
}

}  // namespace

template <class Number, class Context>
void AddKernel(const Context& context, const phi::DenseTensor& x, const phi::DenseTensor& y, phi::DenseTensor* out) {
  auto* result = context.template Alloc<Number>(out);
  finish_all();
  std::lock_guard<std::recursive_mutex> held(lock);
  auto* a = x.template data<Number>();
  auto* b = y.template data<Number>();
  Open open_a(a), open_b(b), open(result);
  for (int64_t i = 0; i < out->numel(); i++)
    result[i] = a[element(x.dims(), out->dims(), i)] + b[element(y.dims(), out->dims(), i)];
}
PD_REGISTER_PLUGIN_KERNEL(add, standin, ALL_LAYOUT, AddKernel, float) {}

extern "C" void InitPlugin(CustomRuntimeParams* plugin) {
  plugin->device_type = const_cast<char*>("standin");
  plugin->sub_device_type = const_cast<char*>("V0");
  plugin->version.major = PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION;
  plugin->version.minor = PADDLE_CUSTOM_RUNTIME_MINOR_VERSION;
  plugin->version.patch = PADDLE_CUSTOM_RUNTIME_PATCH_VERSION;
  auto* device = plugin->interface;
  memset((void*)device, 0, sizeof(C_DeviceInterface));
  device->size = sizeof(C_DeviceInterface);
  device->initialize = nothing;
  device->finalize = nothing;
  device->init_device = nothing_of;
  device->deinit_device = nothing_of;
  device->set_device = set_device;
  device->get_device = get_device;
  device->get_device_count = cards;
  device->get_device_list = list;
  device->create_stream = make_stream;
  device->destroy_stream = drop_stream;
  device->create_event = make_event;
  device->destroy_event = drop_event;
  device->query_stream = query_stream;
  device->query_event = query_event;
  device->record_event = record;
  device->stream_wait_event = stream_waits;
  device->stream_add_callback = call_back;
  device->synchronize_device = wait_device;
  device->synchronize_stream = wait_stream;
  device->synchronize_event = wait_event;
  device->device_memory_allocate = allocate;
  device->device_memory_deallocate = release;
  device->host_memory_allocate = allocate_on_host;
  device->host_memory_deallocate = release_on_host;
  device->unified_memory_allocate = allocate_on_host;
  device->unified_memory_deallocate = release_on_host;
  device->device_memory_set = fill;
  device->device_memory_stats = statistics;
  device->device_min_chunk_size = chunk;
  device->memory_copy_h2d = copy_now;
  device->memory_copy_d2h = copy_now;
  device->memory_copy_d2d = copy_now;
  device->memory_copy_p2p = copy_between;
  device->async_memory_copy_h2d = copy_queued<true>;
  device->async_memory_copy_d2h = copy_queued<false>;
  device->async_memory_copy_d2d = copy_queued<false>;
  device->xccl_get_comm_name = name_of_group;
  device->xccl_get_unique_id_size = id_bytes;
  device->xccl_get_unique_id = make_id;
  device->xccl_comm_init_rank = join;
  device->xccl_destroy_comm = leave;
  device->xccl_all_reduce = all_reduce;
  device->xccl_reduce = reduce;
  device->xccl_reduce_scatter = reduce_scatter;
  device->xccl_broadcast = broadcast;
  device->xccl_all_gather = all_gather;
  device->xccl_group_start = nothing;
  device->xccl_group_end = nothing;
  device->is_bfloat16_supported = yes;
  device->is_float16_supported = yes;
  device->get_compute_capability = version;
  device->get_runtime_version = version;
  device->get_driver_version = version;
}
