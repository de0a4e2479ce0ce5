// The memory that buffers take on each device.
#include <string.h>

#include "caller.h"

#define TAKES                                                                                \
  "module @takes { func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32})" \
  " -> tensor<4xf32> { %0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> } }"
#define SHRINKS                                                                           \
  "module @shrinks { func.func public @main(%a: tensor<4xf32> {jax.buffer_donor = true})" \
  " -> tensor<2xf32> { %0 = stablehlo.slice %a [1:3] : (tensor<4xf32>) -> tensor<2xf32>"  \
  " return %0 : tensor<2xf32> } }"

enum { GIB_OF_V6E = 32 };
static const float IN[] = {1, 2, 3, 4};

static PJRT_Device *device_of(PJRT_Client *client, size_t index) {
  PJRT_Client_AddressableDevices_Args args = {.client = client};
  CALL(PJRT_Client_AddressableDevices, &args);
  EXPECT(index < args.num_addressable_devices);
  return args.addressable_devices[index];
}

static PJRT_Device_MemoryStats_Args stats_of(PJRT_Device *device) {
  PJRT_Device_MemoryStats_Args args;
  memset(&args, 0xFF, sizeof args);  // as of a caller that clears nothing
  args.device = device;
  CALL(PJRT_Device_MemoryStats, &args);
  return args;
}

static int64_t used(PJRT_Device *device) { return stats_of(device).bytes_in_use; }

static void delete_buffer(PJRT_Buffer *buffer) {
  PJRT_Buffer_Delete_Args args = {.buffer = buffer};
  CALL(PJRT_Buffer_Delete, &args);
}

static PJRT_Buffer *run_on(PJRT_LoadedExecutable *executable, PJRT_Buffer *in) {
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  return execute(executable, &options, in);
}

static PJRT_Buffer *copy_to(PJRT_Buffer *buffer, PJRT_Device *device, const char *kind) {
  PJRT_Device_AddressableMemories_Args all = {.device = device};
  CALL(PJRT_Device_AddressableMemories, &all);
  for (size_t i = 0; i < all.num_memories; ++i) {
    PJRT_Memory_Kind_Args is = {.memory = all.memories[i]};
    CALL(PJRT_Memory_Kind, &is);
    if (is.kind_size != strlen(kind) || memcmp(is.kind, kind, is.kind_size) != 0) continue;
    PJRT_Buffer_CopyToMemory_Args copy = {.buffer = buffer, .dst_memory = all.memories[i]};
    CALL(PJRT_Buffer_CopyToMemory, &copy);
    return copy.dst_buffer;
  }
  fail("there is no memory %s", kind);
}

TEST(what_is_counted_of_a_devices_memory_is_set_and_nothing_else) {
  PJRT_Client *client = create_client();
  PJRT_Device *device = first_device(client);
  PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE);
  PJRT_Buffer *in = buffer_of(client, IN, 4), *out = run_on(executable, in);
  destroy_buffer(in);
  const PJRT_Device_MemoryStats_Args stats = stats_of(device);
  EXPECT(stats.bytes_in_use == sizeof IN);
  EXPECT(stats.peak_bytes_in_use_is_set && stats.peak_bytes_in_use == 2 * sizeof IN);
  EXPECT(stats.num_allocs_is_set && stats.num_allocs == 2);
  EXPECT(stats.largest_alloc_size_is_set && stats.largest_alloc_size == sizeof IN);
  EXPECT(stats.bytes_limit_is_set && stats.bytes_limit == (int64_t)GIB_OF_V6E << 30);
  EXPECT(stats.bytes_reserved_is_set && stats.bytes_reserved == 0);
  EXPECT(stats.peak_bytes_reserved_is_set && stats.peak_bytes_reserved == 0);
  EXPECT(!stats.bytes_reservable_limit_is_set && !stats.largest_free_block_bytes_is_set);
  EXPECT(!stats.pool_bytes_is_set && !stats.peak_pool_bytes_is_set);
  EXPECT(used(device_of(client, 1)) == 0);
  PJRT_Device_MemoryStats_Args older = {.device = device};
  const size_t size = PJRT_STRUCT_SIZE(PJRT_Device_MemoryStats_Args, bytes_limit_is_set);
  ok(CALL_SIZED(PJRT_Device_MemoryStats, &older, size), "PJRT_Device_MemoryStats");
  EXPECT(older.bytes_in_use == sizeof IN && older.bytes_limit == stats.bytes_limit);
  destroy_buffer(out);
  EXPECT(used(device) == 0);
  destroy_executable(executable);
  destroy_client(client);
}

TEST(memory_of_the_host_is_not_a_devices) {
  PJRT_Client *client = create_client();
  PJRT_Device *device = first_device(client);
  PJRT_Buffer *buffer = buffer_of(client, IN, 4);
  PJRT_Buffer *host = copy_to(buffer, device, "pinned_host");
  EXPECT(used(device) == sizeof IN);
  destroy_buffer(buffer);
  EXPECT(used(device) == 0);
  PJRT_Buffer *back = copy_to(host, device, "device");
  EXPECT(used(device) == sizeof IN);
  destroy_buffer(host);
  EXPECT(used(device) == sizeof IN);
  destroy_buffer(back);
  EXPECT(used(device) == 0 && stats_of(device).peak_bytes_in_use == sizeof IN);
  destroy_client(client);
}

TEST(a_donated_argument_counts_until_it_is_taken) {
  PJRT_Client *client = create_client();
  PJRT_Device *device = first_device(client);
  PJRT_LoadedExecutable *takes = compile_program(client, TAKES);
  PJRT_LoadedExecutable *shrinks = compile_program(client, SHRINKS);
  PJRT_Buffer *in = buffer_of(client, IN, 4), *same = run_on(takes, in);
  EXPECT(used(device) == sizeof IN);
  EXPECT(stats_of(device).peak_bytes_in_use == sizeof IN);  // its memory is the result's
  PJRT_Buffer *half = run_on(shrinks, same);  // which takes nothing, as no result has that size
  EXPECT(used(device) == sizeof IN + sizeof IN / 2);
  destroy_buffer(in);
  destroy_buffer(same);
  EXPECT(used(device) == sizeof IN / 2);
  destroy_buffer(half);
  EXPECT(used(device) == 0);
  destroy_executable(takes);
  destroy_executable(shrinks);
  destroy_client(client);
}

static void on_delete(void *memory, void *deleted) {
  (void)memory;
  *(int *)deleted = 1;
}

TEST(a_view_takes_no_memory_of_its_own) {
  PJRT_Client *client = create_client();
  PJRT_Device *device = first_device(client);
  _Alignas(64) static float memory[4];
  const int64_t size = 4;
  int deleted = 0;
  PJRT_Client_CreateViewOfDeviceBuffer_Args view = {.client = client,
                                                    .device_buffer_ptr = memory,
                                                    .dims = &size,
                                                    .num_dims = 1,
                                                    .element_type = PJRT_Buffer_Type_F32,
                                                    .device = device,
                                                    .on_delete_callback = on_delete,
                                                    .on_delete_callback_arg = &deleted};
  CALL(PJRT_Client_CreateViewOfDeviceBuffer, &view);
  EXPECT(used(device) == 0);
  PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE);
  PJRT_Buffer *out = run_on(executable, view.buffer);
  EXPECT(used(device) == sizeof IN);
  float read[4];
  to_host(out, read, 4);  // it is done with the view
  destroy_buffer(view.buffer);
  destroy_buffer(out);
  EXPECT(used(device) == 0);
  destroy_executable(executable);
  destroy_client(client);
  EXPECT(deleted);
}

TEST(a_client_takes_its_memory_along) {
  PJRT_Client *first = create_client(), *second = create_client();
  PJRT_Buffer *kept = buffer_of(first, IN, 4), *left = buffer_of(second, IN, 2);
  PJRT_Device *device = first_device(first);
  EXPECT(used(device) == sizeof IN + sizeof IN / 2);  // of one chip
  delete_buffer(left);
  destroy_buffer(left);
  destroy_client(second);
  EXPECT(used(device) == sizeof IN);
  destroy_buffer(kept);
  EXPECT(used(device) == 0);
  destroy_client(first);
}

static void ask_of_both(int number) {
  PJRT_Client *client = create_client();
  PJRT_Client_Devices_Args all = {.client = client};
  CALL(PJRT_Client_Devices, &all);
  PJRT_Device *own = first_device(client);
  PJRT_Buffer *buffer = buffer_of(client, IN, 4);
  EXPECT(used(own) == sizeof IN);
  PJRT_Device_MemoryStats_Args other = {.device = all.devices[1 - number]};
  const char *text = text_of(
      CALL_SIZED(PJRT_Device_MemoryStats, &other, PJRT_Device_MemoryStats_Args_STRUCT_SIZE));
  EXPECT(strstr(text, "virtual TPU: the memory of device") != NULL);
  destroy_buffer(buffer);
  EXPECT(used(own) == 0);
  destroy_client(client);
}

TEST(each_rank_counts_the_memory_of_its_own_devices) { as_ranks(ask_of_both); }

// --- Random sequences, compared with a count of the test's own

enum { SEQUENCES = 20, STEPS = 150, MOST_BUFFERS = 24, DEVICES = 3, PROGRAMS = 3 };

typedef struct {
  PJRT_Buffer *buffer;
  size_t device;
  int64_t floats, counted;  // in bytes, on that device
} Entry;

typedef struct {
  PJRT_Client *client;
  PJRT_LoadedExecutable *programs[PROGRAMS];  // DOUBLE, TAKES, SHRINKS
  int executed[PROGRAMS], refused;
  Entry entries[MOST_BUFFERS];
  size_t count;
  int64_t now[DEVICES], peak[DEVICES];
  uint64_t random;
} Sequence;

static size_t choose(Sequence *sequence, size_t count) {
  sequence->random = sequence->random * 6364136223846793005u + 1442695040888963407u;
  return (size_t)(sequence->random >> 33) % count;
}

static void enter(Sequence *sequence, PJRT_Buffer *buffer, size_t device, int64_t floats,
                  int on_device) {
  const int64_t counted = on_device ? floats * (int64_t)sizeof(float) : 0;
  sequence->entries[sequence->count++] = (Entry){buffer, device, floats, counted};
  int64_t *now = &sequence->now[device];
  *now += counted;
  if (*now > sequence->peak[device]) sequence->peak[device] = *now;
}

static void take(Sequence *sequence, Entry *entry) {
  sequence->now[entry->device] -= entry->counted;
  entry->counted = 0;
}

static void drop(Sequence *sequence, size_t index) {
  take(sequence, &sequence->entries[index]);
  destroy_buffer(sequence->entries[index].buffer);
  sequence->entries[index] = sequence->entries[--sequence->count];
}

static void make(Sequence *sequence) {
  const int64_t floats = choose(sequence, 2) ? 4 : (int64_t)choose(sequence, 300);
  float data[300] = {0};
  enter(sequence, buffer_of(sequence->client, data, floats), 0, floats, 1);
}

static int is_alive(const Entry *entry) {
  PJRT_Buffer_IsDeleted_Args args = {.buffer = entry->buffer};
  CALL(PJRT_Buffer_IsDeleted, &args);
  return !args.is_deleted;
}

static void execute_one(Sequence *sequence, Entry *entry) {
  const size_t which = choose(sequence, PROGRAMS);
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer *result, **results[] = {&result}, *const arguments[] = {entry->buffer};
  PJRT_Buffer *const *const lists[] = {arguments};
  PJRT_LoadedExecutable_Execute_Args args = {.executable = sequence->programs[which],
                                             .options = &options,
                                             .argument_lists = lists,
                                             .num_devices = 1,
                                             .num_args = 1,
                                             .output_lists = results};
  const int fits = entry->counted > 0 && entry->device == 0 && entry->floats == 4;
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &args,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  if (!fits) {
    text_of(error);  // deleted, too large, or elsewhere
    ++sequence->refused;
    return;
  }
  ok(error, "PJRT_LoadedExecutable_Execute");
  ++sequence->executed[which];
  if (which == 1) take(sequence, entry);
  enter(sequence, result, 0, which == 2 ? 2 : 4, 1);
}

static void copy_one(Sequence *sequence, const Entry *entry) {
  const size_t device = choose(sequence, DEVICES);
  const int on_device = choose(sequence, 2) == 1;
  PJRT_Buffer *copy = copy_to(entry->buffer, device_of(sequence->client, device),
                              on_device ? "device" : "unpinned_host");
  enter(sequence, copy, device, entry->floats, on_device);
}

static void step(Sequence *sequence) {
  if (sequence->count == 0) return make(sequence);
  const size_t index = choose(sequence, sequence->count);
  Entry *entry = &sequence->entries[index];
  const size_t kind = choose(sequence, 6);
  if (kind == 0 || sequence->count == MOST_BUFFERS) {
    drop(sequence, index);
  } else if (kind == 1) {
    make(sequence);
  } else if (kind == 2) {
    delete_buffer(entry->buffer);
    take(sequence, entry);
  } else if (kind == 3 && is_alive(entry)) {
    copy_one(sequence, entry);
  } else if (!(entry->counted == 0 &&
               is_alive(entry))) {  // one on the host is taken too, uncounted
    execute_one(sequence, entry);
  }
}

static void compare(const Sequence *sequence, int number, int at) {
  for (size_t i = 0; i < DEVICES; ++i) {
    const PJRT_Device_MemoryStats_Args stats = stats_of(device_of(sequence->client, i));
    if (stats.bytes_in_use == sequence->now[i] && stats.peak_bytes_in_use == sequence->peak[i])
      continue;
    fail("sequence %d, step %d, device %zu: expected %lld bytes, at most %lld; got %lld, %lld",
         number, at, i, (long long)sequence->now[i], (long long)sequence->peak[i],
         (long long)stats.bytes_in_use, (long long)stats.peak_bytes_in_use);
  }
}

TEST(a_devices_memory_is_counted_right_over_random_sequences) {
  Sequence sequence = {.client = create_client()};
  static const char *const TEXTS[PROGRAMS] = {DOUBLE, TAKES, SHRINKS};
  for (size_t i = 0; i < PROGRAMS; ++i) {
    sequence.programs[i] = compile_program(sequence.client, TEXTS[i]);
  }
  for (int number = 0; number < SEQUENCES; ++number) {
    sequence.random = (uint64_t)number + 1;
    for (int at = 0; at < STEPS; ++at) {
      step(&sequence);
      compare(&sequence, number, at);
    }
    while (sequence.count > 0) drop(&sequence, 0);
    compare(&sequence, number, STEPS);
    for (size_t i = 0; i < DEVICES; ++i) EXPECT(sequence.now[i] == 0);
  }
  for (size_t i = 0; i < DEVICES; ++i) EXPECT(sequence.peak[i] > 0);
  for (size_t i = 0; i < PROGRAMS; ++i) EXPECT(sequence.executed[i] > 0 && sequence.refused > 0);
  for (size_t i = 0; i < PROGRAMS; ++i) destroy_executable(sequence.programs[i]);
  destroy_client(sequence.client);
}
