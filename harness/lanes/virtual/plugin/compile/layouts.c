#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// Copies of arrays that are not row-major. The CPU's client copies their bytes to another memory or
// device and calls them row-major there.

static int is_row_major(const PJRT_Buffer_MemoryLayout *layout) {
  if (layout->type != PJRT_Buffer_MemoryLayout_Type_Tiled) return 1;
  const size_t rank = layout->tiled.minor_to_major_size;
  for (size_t i = 0; i < rank; ++i) {
    if (layout->tiled.minor_to_major[i] != (int64_t)(rank - 1 - i)) return 0;
  }
  return 1;
}

static PJRT_Error *layout_of(PJRT_Buffer *buffer, PJRT_Buffer_MemoryLayout *layout) {
  PJRT_Buffer_GetMemoryLayout_Args args = {SIZED(PJRT_Buffer_GetMemoryLayout_Args),
                                           .buffer = buffer};
  TRY(PJRT_Buffer_GetMemoryLayout, args);
  *layout = args.layout;
  return NULL;
}

PJRT_Error *buffer_is_row_major(PJRT_Buffer *buffer, int *row_major) {
  PJRT_Buffer_MemoryLayout layout;
  PJRT_Error *error = layout_of(buffer, &layout);
  *row_major = error == NULL && is_row_major(&layout);
  return error;
}

// Read an array in its own layout.
static PJRT_Error *read_array(PJRT_Buffer *buffer, void **data, size_t *size) {
  PJRT_Buffer_ToHostBuffer_Args args = {SIZED(PJRT_Buffer_ToHostBuffer_Args), .src = buffer};
  TRY(PJRT_Buffer_ToHostBuffer, args);
  *size = args.dst_size;
  args.dst = *data = allocate(args.dst_size, 1, "a copy of an array");
  TRY(PJRT_Buffer_ToHostBuffer, args);
  return event_await(args.event);
}

// Return how many bytes lie between the elements of each dimension, to be freed.
static int64_t *strides_of(const PJRT_Buffer_MemoryLayout_Tiled *layout, const int64_t *dimensions,
                           size_t size) {
  int64_t *strides = allocate(layout->minor_to_major_size, sizeof *strides, "strides");
  int64_t stride = (int64_t)size;
  for (size_t i = layout->minor_to_major_size; i-- > 0 && stride > 0;) {
    const int64_t dimension = layout->minor_to_major[i];
    strides[dimension] = stride /= dimensions[dimension];
  }
  return strides;
}

static int is_same_order(const PJRT_Buffer_MemoryLayout *one,
                         const PJRT_Buffer_MemoryLayout *other) {
  if (one->type != other->type || one->type != PJRT_Buffer_MemoryLayout_Type_Tiled) return 1;
  const size_t rank = one->tiled.minor_to_major_size;
  return rank != other->tiled.minor_to_major_size ||
         memcmp(one->tiled.minor_to_major, other->tiled.minor_to_major, rank * sizeof(int64_t)) ==
             0;
}

// Copy each element to where another order of the dimensions has it.
static void reorder(const char *from, char *to, size_t size, const int64_t *dimensions, size_t rank,
                    const int64_t *from_strides, const int64_t *to_strides) {
  size_t count = 1;
  for (size_t i = 0; i < rank; ++i) count *= (size_t)dimensions[i];
  const size_t element = count == 0 ? 0 : size / count;
  for (size_t number = 0; number < count; ++number) {
    size_t rest = number, source = 0, target = 0;
    for (size_t i = rank; i-- > 0; rest /= (size_t)dimensions[i]) {
      const size_t index = rest % (size_t)dimensions[i];
      source += index * (size_t)from_strides[i];
      target += index * (size_t)to_strides[i];
    }
    memcpy(to + target, from + source, element);
  }
}

PJRT_Error *layouts_to_host(PJRT_Buffer_ToHostBuffer_Args *args) {
  PJRT_Buffer_MemoryLayout own;
  const int is_given = args->dst != NULL && args->host_layout != NULL;
  PJRT_Error *error = is_given ? layout_of(args->src, &own) : NULL;
  if (error != NULL) return error;
  if (!is_given || is_same_order(&own, args->host_layout)) {
    return bridge_PJRT_Buffer_ToHostBuffer(args);
  }
  PJRT_Buffer_Dimensions_Args shape = {SIZED(PJRT_Buffer_Dimensions_Args), .buffer = args->src};
  TRY(PJRT_Buffer_Dimensions, shape);
  PJRT_Buffer_ReadyEvent_Args ready = {SIZED(PJRT_Buffer_ReadyEvent_Args), .buffer = args->src};
  TRY(PJRT_Buffer_ReadyEvent, ready);
  void *data = NULL;
  size_t size = 0;
  error = read_array(args->src, &data, &size);
  if (error == NULL && args->dst_size < size) {
    error = error_new(PJRT_Error_Code_INVALID_ARGUMENT, "an array of %zu bytes, and room for %zu",
                      size, args->dst_size);
  }
  if (error == NULL) {
    int64_t *from = strides_of(&own.tiled, shape.dims, size);
    int64_t *to = strides_of(&args->host_layout->tiled, shape.dims, size);
    reorder(data, args->dst, size, shape.dims, shape.num_dims, from, to);
    free(from);
    free(to);
    args->event = ready.event;
  } else {
    event_drop(ready.event);
  }
  free(data);
  return error;
}

// Make an array of what lies in memory in that layout.
static PJRT_Error *write_array(const void *data, size_t size, PJRT_Buffer_MemoryLayout *layout,
                               PJRT_Buffer_CopyToMemory_Args *to) {
  PJRT_Buffer_ElementType_Args type = {SIZED(PJRT_Buffer_ElementType_Args), .buffer = to->buffer};
  TRY(PJRT_Buffer_ElementType, type);
  PJRT_Buffer_Dimensions_Args shape = {SIZED(PJRT_Buffer_Dimensions_Args), .buffer = to->buffer};
  TRY(PJRT_Buffer_Dimensions, shape);
  PJRT_Buffer_Device_Args of = {SIZED(PJRT_Buffer_Device_Args), .buffer = to->buffer};
  TRY(PJRT_Buffer_Device, of);
  int is_usual;  // a TPU's memory, and pinned memory, have other layouts too
  PJRT_Error *error = memory_is(to->dst_memory, "unpinned_host", &is_usual);
  if (error != NULL) return error;
  int64_t *strides = strides_of(&layout->tiled, shape.dims, size);
  PJRT_Client_BufferFromHostBuffer_Args args = {
      SIZED(PJRT_Client_BufferFromHostBuffer_Args),
      .client = devices_client_of(of.device),
      .data = data,
      .type = type.type,
      .dims = shape.dims,
      .num_dims = shape.num_dims,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .memory = to->dst_memory,
      .byte_strides = is_usual ? strides : NULL,
      .num_byte_strides = is_usual ? shape.num_dims : 0,
      .device_layout = is_usual ? NULL : layout};
  error = backend->PJRT_Client_BufferFromHostBuffer(&args);
  free(strides);
  if (error == NULL && (error = event_await(args.done_with_host_buffer)) != NULL) {
    buffer_drop(args.buffer);
  }
  if (error == NULL) to->dst_buffer = args.buffer;
  return error;
}

PJRT_Error *layouts_copy(PJRT_Buffer_CopyToMemory_Args *args) {
  PJRT_Buffer_MemoryLayout layout;
  PJRT_Error *error = layout_of(args->buffer, &layout);
  if (error != NULL) return error;
  if (is_row_major(&layout)) return bridge_PJRT_Buffer_CopyToMemory(args);
  void *data = NULL;
  size_t size = 0;
  error = read_array(args->buffer, &data, &size);
  if (error == NULL) error = write_array(data, size, &layout, args);
  free(data);
  return error;
}

void layouts_fill(PJRT_Api *api) { api->PJRT_Buffer_CopyToMemory = layouts_copy; }
