#include <stdlib.h>
#include <string.h>

#include "meet/meet.h"

// The bytes behind a buffer, which TorchTPU's windows (one-sided transfers) read and write, a part
// at a time. The header of xla-cpu-pjrt numbers this extension and does not declare it. Layout:
// https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_raw_buffer_extension.h

typedef struct {
  PJRT_Buffer *buffer;  // the caller's, who destroys it after this
  size_t size;
} RawBuffer;

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  RawBuffer *raw;  // out
} CreateArgs;

// All others begin like this.
typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  RawBuffer *raw;
  union {
    size_t size;          // out
    PJRT_Memory *memory;  // out
    void *pointer;        // out
    struct {
      union {
        void *to;
        const void *from;
      };
      int64_t offset, size;
      PJRT_Event *event;  // out
    } copy;
  };
} Args;

static PJRT_Error *create(CreateArgs *args) {
  PJRT_Buffer_OnDeviceSizeInBytes_Args size = {SIZED(PJRT_Buffer_OnDeviceSizeInBytes_Args),
                                               .buffer = args->buffer};
  TRY(PJRT_Buffer_OnDeviceSizeInBytes, size);
  RawBuffer *raw = allocate(1, sizeof *raw, "a raw buffer");
  *raw = (RawBuffer){args->buffer, size.on_device_size_in_bytes};
  args->raw = raw;
  return NULL;
}

static PJRT_Error *destroy(Args *args) {
  free(args->raw);
  return NULL;
}

static PJRT_Error *get_size(Args *args) {
  args->size = args->raw->size;
  return NULL;
}

static PJRT_Error *get_memory(Args *args) {
  PJRT_Buffer_Memory_Args memory = {SIZED(PJRT_Buffer_Memory_Args), .buffer = args->raw->buffer};
  TRY(PJRT_Buffer_Memory, memory);
  args->memory = memory.memory;
  return NULL;
}

static PJRT_Error *get_pointer(Args *args) {
  args->pointer = NULL;  // a TPU's memory is not the host's
  return NULL;
}

static PJRT_Error *check(const Args *args) {
  const int64_t offset = args->copy.offset, size = args->copy.size;
  const int64_t whole = (int64_t)args->raw->size;
  if (offset >= 0 && size >= 0 && offset <= whole && size <= whole - offset) return NULL;
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "%lld bytes at offset %lld of a buffer that has %lld", (long long)size,
                   (long long)offset, (long long)whole);
}

static PJRT_Error *ready(const RawBuffer *raw, PJRT_Event **event) {
  PJRT_Buffer_ReadyEvent_Args args = {SIZED(PJRT_Buffer_ReadyEvent_Args), .buffer = raw->buffer};
  TRY(PJRT_Buffer_ReadyEvent, args);
  *event = args.event;
  return NULL;
}

// Copy to a buffer once it has its value: a program that is still to fill it must not win.
static PJRT_Error *copy_to_device(Args *args) {
  PJRT_Error *error = check(args);
  PJRT_Event *event = NULL;
  if (error == NULL) error = ready(args->raw, &event);
  if (error == NULL) error = event_await(event);
  if (error != NULL) return error;
  PJRT_Buffer_UnsafePointer_Args pointer = {SIZED(PJRT_Buffer_UnsafePointer_Args),
                                            .buffer = args->raw->buffer};
  TRY(PJRT_Buffer_UnsafePointer, pointer);
  char *bytes = (char *)pointer.buffer_pointer;
  if (args->copy.size > 0) {
    memcpy(bytes + args->copy.offset, args->copy.from, (size_t)args->copy.size);
  }
  return ready(args->raw, &args->copy.event);
}

static PJRT_Error *copy_to_host(Args *args) {
  PJRT_Error *error = check(args);
  if (error != NULL) return error;
  PJRT_Buffer_CopyRawToHost_Args copy = {
      SIZED(PJRT_Buffer_CopyRawToHost_Args), .buffer = args->raw->buffer, .dst = args->copy.to,
      .offset = args->copy.offset, .transfer_size = args->copy.size};
  TRY(PJRT_Buffer_CopyRawToHost, copy);
  args->copy.event = copy.event;
  unseen_give(copy.event, CALLER);
  return NULL;
}

void raw_buffers_fill(PJRT_Api *table) {
  static struct {
    PJRT_Extension_Base base;
    PJRT_Error *(*create)(CreateArgs *args);
    PJRT_Error *(*calls[6])(Args *args);
  } extension = {
      .base = {.struct_size = sizeof extension, .type = PJRT_Extension_Type_RawBuffer},
      .create = create,
      .calls = {destroy, get_size, get_memory, copy_to_device, copy_to_host, get_pointer}};
  extension.base.next = table->extension_start;
  table->extension_start = &extension.base;
}
