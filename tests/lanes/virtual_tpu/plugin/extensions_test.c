// What TorchTPU asks libtpu's extensions for, by the numbers and structs of XLA's later headers.
#include <stdint.h>
#include <string.h>

#include "caller.h"

typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*calls[])(void *);
} Extension;

static const Extension *extension_of(int type) {
  for (const PJRT_Extension_Base *at = api->extension_start; at != NULL; at = at->next) {
    if ((int)at->type == type) return (const Extension *)at;
  }
  fail("there is no extension %d", type);
}

TEST(host_memory_is_aligned_and_freed_by_its_deleter) {
  PJRT_Client *client = create_client();
  const Extension *host = extension_of(23);
  const size_t sizes[] = {0, 1, 64, 100, 1 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    struct {
      size_t struct_size;
      void *extension_start;
      PJRT_Client *client;
      size_t size;
      int numa_node;
      uint8_t *memory;
      void (*deleter)(void *, void *);
      void *state;
    } args = {.struct_size = sizeof args, .client = client, .size = sizes[i]};
    ok(host->calls[0](&args), "HostMemoryAllocator_Allocate");
    EXPECT((uintptr_t)args.memory % 64 == 0);
    memset(args.memory, 1, sizes[i]);
    args.deleter(args.memory, args.state);
  }
  destroy_client(client);
}

TEST(a_topology_tells_its_chips_and_nothing_else) {
  PJRT_Client *client = create_client();
  const Extension *topology = extension_of(16);
  enum { CHIP_COUNT = 10 };
  const size_t calls = (topology->base.struct_size - sizeof topology->base) / sizeof(void *);
  EXPECT(calls == 30);
  for (size_t i = 0; i < calls; ++i) {
    struct {
      size_t struct_size;
      const void *topology;
      int32_t count;
    } args = {.struct_size = sizeof args};
    PJRT_Error *error = topology->calls[i](&args);
    if (i != CHIP_COUNT) {
      EXPECT(code_of(error) == PJRT_Error_Code_UNIMPLEMENTED);
      EXPECT(strstr(text_of(error), "virtual TPU: ") != NULL);
    } else {
      ok(error, "TpuTopology_ChipCount");
      EXPECT(args.count == 8);
    }
  }
  destroy_client(client);
}

static void expect_out_of_bounds(PJRT_Error *error) {
  EXPECT(code_of(error) == PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT(strstr(text_of(error), "of a buffer that has 16") != NULL);
}

TEST(a_raw_buffer_is_the_bytes_behind_a_buffer) {
  PJRT_Client *client = create_client();
  const Extension *raw = extension_of(PJRT_Extension_Type_RawBuffer);
  enum { CREATE, DESTROY, SIZE, MEMORY, TO_DEVICE, TO_HOST, POINTER, CALLS };
  EXPECT((raw->base.struct_size - sizeof raw->base) / sizeof(void *) == CALLS);
  const float given[] = {1, 2, 3, 4}, other[] = {8, 9};
  const int64_t dimensions[] = {4};
  PJRT_Client_BufferFromHostBuffer_Args from = {
      .client = client,
      .data = given,
      .type = PJRT_Buffer_Type_F32,
      .dims = dimensions,
      .num_dims = 1,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = first_device(client)};
  CALL(PJRT_Client_BufferFromHostBuffer, &from);
  struct {
    size_t struct_size;
    void *extension_start;
    PJRT_Buffer *buffer;
    void *raw;
  } made = {.struct_size = sizeof made, .buffer = from.buffer};
  ok(raw->calls[CREATE](&made), "CreateRawAliasOfBuffer");

  struct {
    size_t struct_size;
    void *extension_start;
    void *raw;
    void *answer;
  } asked = {.struct_size = sizeof asked, .raw = made.raw};
  ok(raw->calls[SIZE](&asked), "GetOnDeviceSizeInBytes");
  EXPECT((size_t)asked.answer == sizeof given);
  ok(raw->calls[POINTER](&asked), "GetHostPointer");
  EXPECT(asked.answer == NULL);
  ok(raw->calls[MEMORY](&asked), "GetMemorySpace");
  PJRT_Buffer_Memory_Args memory = {.buffer = from.buffer};
  CALL(PJRT_Buffer_Memory, &memory);
  EXPECT(asked.answer == memory.memory);

  float found[4] = {0};
  struct {
    size_t struct_size;
    void *extension_start;
    void *raw;
    const void *host;
    int64_t offset, size;
    PJRT_Event *event;
  } in = {.struct_size = sizeof in, .raw = made.raw, .host = other, .offset = 4, .size = 8},
    out = {.struct_size = sizeof out, .raw = made.raw, .host = found, .size = sizeof found};
  ok(raw->calls[TO_DEVICE](&in), "CopyRawHostToDevice");
  ok(event_await(in.event), "its event");
  ok(raw->calls[TO_HOST](&out), "CopyRawDeviceToHost");
  ok(event_await(out.event), "its event");
  EXPECT(found[0] == 1 && found[1] == 8 && found[2] == 9 && found[3] == 4);

  const int64_t beyond[][2] = {{12, 8}, {-4, 8}, {0, 17}, {4, -1}, {INT64_MAX, 8}, {8, INT64_MAX}};
  for (size_t i = 0; i < sizeof beyond / sizeof *beyond; ++i) {
    in.offset = out.offset = beyond[i][0];
    in.size = out.size = beyond[i][1];
    expect_out_of_bounds(raw->calls[TO_DEVICE](&in));
    expect_out_of_bounds(raw->calls[TO_HOST](&out));
  }
  ok(raw->calls[DESTROY](&asked), "Destroy");
  PJRT_Event_Destroy_Args host = {.event = from.done_with_host_buffer};
  CALL(PJRT_Event_Destroy, &host);
  PJRT_Buffer_Destroy_Args buffer = {.buffer = from.buffer};
  CALL(PJRT_Buffer_Destroy, &buffer);
  destroy_client(client);
}
