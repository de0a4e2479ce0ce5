// Memory that a rank shares with the job's executor: the arguments of one execution, and room for
// its results.
#ifndef XLA_HARNESS_VIRTUAL_TPU_SEGMENT_H_
#define XLA_HARNESS_VIRTUAL_TPU_SEGMENT_H_

#include <stddef.h>
#include <stdint.h>

#include "api/api.h"

enum { MOST_DIMENSIONS = 32, ALIGNMENT = 64 };

typedef struct {
  int64_t type;  // a PJRT_Buffer_Type
  int64_t dimensions_count, dimensions[MOST_DIMENSIONS];
  uint64_t offset, size;  // in bytes, from the segment's start
} Array;

// After it: for each device its id, its arguments, and its results.
typedef struct {
  uint64_t size;
  int64_t devices, arguments, results;
} Segment;

typedef struct {
  int64_t id;
  Array arrays[];
} SegmentDevice;

static inline size_t segment_device_size(const Segment *segment) {
  const size_t arrays = (size_t)(segment->arguments + segment->results);
  return sizeof(SegmentDevice) + arrays * sizeof(Array);
}

static inline SegmentDevice *segment_device(const Segment *segment, int64_t index) {
  return (SegmentDevice *)((char *)segment + sizeof *segment +
                           (size_t)index * segment_device_size(segment));
}

static inline Array *segment_argument(const Segment *segment, int64_t device, int64_t index) {
  return &segment_device(segment, device)->arrays[index];
}

static inline Array *segment_result(const Segment *segment, int64_t device, int64_t index) {
  return &segment_device(segment, device)->arrays[segment->arguments + index];
}

// Return the arguments to make a buffer of an array that lies where its data does.
static inline PJRT_Client_BufferFromHostBuffer_Args array_args(const Array *array, const void *data,
                                                               PJRT_Client *client,
                                                               PJRT_Device *device) {
  return (PJRT_Client_BufferFromHostBuffer_Args){
      SIZED(PJRT_Client_BufferFromHostBuffer_Args),
      .client = client,
      .data = data,
      .type = (PJRT_Buffer_Type)array->type,
      .dims = array->dimensions,
      .num_dims = (size_t)array->dimensions_count,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableZeroCopy,
      .device = device};
}

#endif  // XLA_HARNESS_VIRTUAL_TPU_SEGMENT_H_
