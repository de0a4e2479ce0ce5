#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meet/meeting.h"

// The memory that an execution's arguments and results are handed over in.

static int loans_made;

// Return the bytes of an element on the host, or 0 for a type that is not handed over.
static size_t element_size(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_INVALID:
    case PJRT_Buffer_Type_TOKEN:
      return 0;
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16:
      return 2;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_F32:
      return 4;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64:
      return 8;
    case PJRT_Buffer_Type_C128:
      return 16;
    default:
      return 1;  // of 8 bits; those of fewer take a byte each on the host
  }
}

// Return whether a buffer can be promised: not of elements of less than a byte, as it has no place
// to say so.
static int is_promised(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_S2:
    case PJRT_Buffer_Type_U2:
    case PJRT_Buffer_Type_S4:
    case PJRT_Buffer_Type_U4:
    case PJRT_Buffer_Type_F4E2M1FN:
      return 0;
    default:
      return element_size(type) > 0;
  }
}

static PJRT_Error *unsupported(const char *subject, PJRT_Buffer_Type type) {
  const char *kind = type == PJRT_Buffer_Type_TOKEN     ? "a token"
                     : type == PJRT_Buffer_Type_INVALID ? "an unknown type"
                                                        : "a type of less than a byte";
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "%s is of %s (PJRT's number %d): a program over several processes "
                   "can't have that",
                   subject, kind, (int)type);
}

PJRT_Error *segment_check_result(PJRT_Buffer_Type type, size_t dimensions) {
  if (!is_promised(type)) return unsupported("a result", type);
  if (dimensions <= MOST_DIMENSIONS) return NULL;
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "a result has %zu dimensions, expected %d at most", dimensions, MOST_DIMENSIONS);
}

static void place(Array *array, uint64_t *end) {
  array->offset = (*end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  *end = array->offset + array->size;
}

void array_measure(Array *array, PJRT_Buffer_Type type, const int64_t *dimensions, size_t count) {
  array->type = type;
  array->dimensions_count = (int64_t)count;
  array->size = element_size(type);
  for (size_t i = 0; i < count; ++i) {
    array->dimensions[i] = dimensions[i];
    array->size *= (uint64_t)dimensions[i];
  }
}

PJRT_Error *array_measure_buffer(Array *array, PJRT_Buffer *buffer) {
  PJRT_Buffer_ElementType_Args type = {SIZED(PJRT_Buffer_ElementType_Args), .buffer = buffer};
  TRY(PJRT_Buffer_ElementType, type);
  PJRT_Buffer_Dimensions_Args shape = {SIZED(PJRT_Buffer_Dimensions_Args), .buffer = buffer};
  TRY(PJRT_Buffer_Dimensions, shape);
  PJRT_Buffer_DynamicDimensionIndices_Args dynamic = {
      SIZED(PJRT_Buffer_DynamicDimensionIndices_Args), .buffer = buffer};
  TRY(PJRT_Buffer_DynamicDimensionIndices, dynamic);
  if (dynamic.num_dynamic_dims > 0) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "an argument has a dimension of dynamic size: a program over "
                     "several processes takes none");
  }
  if (shape.num_dims > MOST_DIMENSIONS) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "an argument has %zu dimensions, expected %d at most", shape.num_dims,
                     MOST_DIMENSIONS);
  }
  if (element_size(type.type) == 0) return unsupported("an argument", type.type);
  array_measure(array, type.type, shape.dims, shape.num_dims);
  return NULL;
}

// Check an argument as the backend checks those that it is given itself.
static PJRT_Error *check_place(PJRT_Buffer *buffer, const PJRT_Device *device, size_t index) {
  PJRT_Buffer_IsDeleted_Args deleted = {SIZED(PJRT_Buffer_IsDeleted_Args), .buffer = buffer};
  TRY(PJRT_Buffer_IsDeleted, deleted);
  if (deleted.is_deleted) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "argument %zu: its buffer has been deleted or donated", index);
  }
  PJRT_Buffer_Device_Args on = {SIZED(PJRT_Buffer_Device_Args), .buffer = buffer};
  TRY(PJRT_Buffer_Device, on);
  if (on.device == device) return NULL;
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "argument %zu: expected a buffer on device %d but got one on "
                   "device %d",
                   index, device_id((PJRT_Device *)device), device_id(on.device));
}

static void measure_results(const Program *program, Segment *segment, int64_t device,
                            uint64_t *end) {
  const int64_t *next = program->dimensions;
  for (size_t i = 0; i < program->results; ++i) {
    Array *array = segment_result(segment, device, (int64_t)i);
    array_measure(array, program->types[i], next, program->ranks[i]);
    next += program->ranks[i];
    place(array, end);
  }
}

PJRT_Error *segment_plan(const Program *program, const PJRT_LoadedExecutable_Execute_Args *args,
                         PJRT_Device *const *devices, Segment *head) {
  *head = (Segment){.devices = (int64_t)args->num_devices,
                    .arguments = (int64_t)args->num_args,
                    .results = (int64_t)program->results};
  uint64_t end = sizeof *head + args->num_devices * segment_device_size(head);
  for (size_t i = 0; i < args->num_devices; ++i) {
    segment_device(head, (int64_t)i)->id = device_id(devices[i]);
    for (size_t k = 0; k < args->num_args; ++k) {
      Array *array = segment_argument(head, (int64_t)i, (int64_t)k);
      PJRT_Error *error = check_place(args->argument_lists[i][k], devices[i], k);
      if (error == NULL) error = array_measure_buffer(array, args->argument_lists[i][k]);
      if (error != NULL) return error;
      place(array, &end);
    }
    measure_results(program, head, (int64_t)i, &end);
  }
  head->size = end;
  return NULL;
}

PJRT_Error *memory_share(uint64_t size, int *file, void **at) {
  *file = memfd_create("xla-harness-segment", MFD_CLOEXEC);
  // Taken now: memory that is missing later would end the process with SIGBUS.
  const int wrong = *file < 0 ? errno : posix_fallocate(*file, 0, (off_t)size);
  *at = wrong != 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
  if (*at != MAP_FAILED) return NULL;
  const int why = wrong != 0 ? wrong : errno;
  if (*file >= 0) close(*file);
  return error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                   "no memory for %llu bytes that several processes share: %s",
                   (unsigned long long)size, strerror(why));
}

static PJRT_Error *make_loan(const Segment *head, Loan **loan) {
  int file;
  void *at;
  PJRT_Error *error = memory_share(head->size, &file, &at);
  if (error != NULL) return error;
  *loan = allocate(1, sizeof **loan, "a segment");
  **loan = (Loan){.number = ++loans_made, .file = file, .segment = at};
  job_send(file, "segment %d %llu", (*loan)->number, (unsigned long long)head->size);
  return NULL;
}

PJRT_Error *loan_borrow(Program *program, const Segment *head, size_t head_size, Loan **loan) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&meeting_lock);
  Loan **link = &program->free;
  while (*link != NULL && memcmp((*link)->segment, head, head_size) != 0) link = &(*link)->next;
  *loan = *link;
  if (*loan != NULL) {
    *link = (*loan)->next;
  } else {
    error = make_loan(head, loan);
    if (error == NULL) memcpy((*loan)->segment, head, head_size);
  }
  if (error == NULL) {
    (*loan)->program = program;
    (*loan)->users = 1;
    ++program->users;
  }
  pthread_mutex_unlock(&meeting_lock);
  return error;
}

void loan_return(Loan *loan) {
  if (--loan->users > 0) return;
  Program *program = loan->program;
  loan->next = program->free;
  program->free = loan;
  program_leave(program);
}

void loan_free(Loan *loan) {
  job_send(-1, "drop %d", loan->number);
  munmap(loan->segment, loan->segment->size);
  close(loan->file);
  free(loan);
}
