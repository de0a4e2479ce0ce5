#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin.h"
#include "segment.h"

// A program whose devices belong to several processes, or to threads that each run it on one. It is
// executed by the job's executor, once for all: this side hands over its devices' arguments, and
// gives the caller buffers that get their values when the results are there. As on hardware the
// caller does not wait, and what is queued for a device runs in that order.

typedef struct Loan {
  struct Loan *next;
  int number, file;
  Segment *segment;
} Loan;

// An executable that has met before. What is told of its results belongs to `told`.
typedef struct Program {
  struct Program *next;
  const PJRT_LoadedExecutable *executable;  // NULL when it is no more
  PJRT_Executable *told;
  int number, users;  // executions that are on their way
  char *devices;      // of the whole program, in its order, as text: 0,1,2,3
  size_t devices_count, results;
  const PJRT_Buffer_Type *types;
  const int64_t *dimensions;
  const size_t *ranks;
  int64_t *donated;
  size_t donated_count;
  Loan *free;  // segments that no execution uses
} Program;

// One execution on its way.
typedef struct Ticket {
  struct Ticket *next;           // of those that the job's executor has
  struct Ticket *later, **from;  // of all
  int number;
  Program *program;
  Loan *loan;
  PJRT_Client *client;
  PJRT_Device **devices;
  uint64_t *turns;  // of each of its devices
  PJRT_Event **copied;
  size_t copied_count;
  // One a result, then one that only says when; NULL where nothing has been promised.
  PJRT_FulfillAliasBufferCallback **promises;
  char *own, *site;  // the devices as text, and the line of Python that it comes from
} Ticket;

// Who queues more for a device waits: each execution has memory of its own.
enum { MOST_DEVICES = 4096, MOST_QUEUED = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static Program *programs;
static Ticket *tickets, *all;
static int programs_made, loans_made, tickets_made;
// For each device: executions that were queued, that the executor has been told of, and that ended.
static uint64_t turns_given[MOST_DEVICES], turns_taken[MOST_DEVICES], turns_ended[MOST_DEVICES];

#define CALL(entry, args)                         \
  do {                                            \
    PJRT_Error *error_ = backend->entry(&(args)); \
    if (error_ != NULL) return error_;            \
  } while (0)

// Bytes of an element on the host, or 0 for a type that is not handed over.
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

// A buffer that is promised can't have elements of less than a byte: it has no place to say so.
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

static PJRT_Error *unsupported(const char *what, PJRT_Buffer_Type type) {
  const char *kind = type == PJRT_Buffer_Type_TOKEN     ? "a token"
                     : type == PJRT_Buffer_Type_INVALID ? "an unknown type"
                                                        : "a type of less than a byte";
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "virtual TPU: %s is of %s (PJRT's number %d): a program over several processes "
                   "can't have that",
                   what, kind, (int)type);
}

static PJRT_Error *await(PJRT_Event *event) {
  if (event == NULL) return NULL;
  PJRT_Event_Await_Args wait = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = event};
  PJRT_Error *error = backend->PJRT_Event_Await(&wait);
  PJRT_Event_Destroy_Args destroy = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE,
                                     .event = event};
  backend->PJRT_Event_Destroy(&destroy);
  return error;
}

// An error's text, to be freed; the error is.
static char *text_of(PJRT_Error *error) {
  PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                     .error = error};
  error_message(&message);
  char *text = strndup(message.message, message.message_size);
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE,
                                     .error = error};
  error_destroy(&destroy);
  return text;
}

// --- Programs

// Hand the executable to the job's executor, as XLA serialises it.
static PJRT_Error *send_program(Program *program, PJRT_Executable *executable) {
  PJRT_Executable_Serialize_Args bytes = {.struct_size = PJRT_Executable_Serialize_Args_STRUCT_SIZE,
                                          .executable = executable};
  CALL(PJRT_Executable_Serialize, bytes);
  const int file = memfd_create("xla-harness-program", MFD_CLOEXEC);
  size_t done = 0;
  while (file >= 0 && done < bytes.serialized_bytes_size) {
    const ssize_t size =
        write(file, bytes.serialized_bytes + done, bytes.serialized_bytes_size - done);
    if (size <= 0) break;
    done += (size_t)size;
  }
  PJRT_Error *error = NULL;
  if (done < bytes.serialized_bytes_size) {
    error = error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                      "virtual TPU: no memory for a program of %zu bytes: %s",
                      bytes.serialized_bytes_size, strerror(errno));
  } else {
    program->donated = donated_parameters(bytes.serialized_bytes, bytes.serialized_bytes_size,
                                          &program->donated_count);
    PJRT_Executable_NumPartitions_Args partitions = {
        .struct_size = PJRT_Executable_NumPartitions_Args_STRUCT_SIZE, .executable = executable};
    backend->PJRT_Executable_NumPartitions(&partitions);
    job_send(file, "program %d %zu %zu %zu", program->number, done, partitions.num_partitions,
             program->devices_count);
  }
  if (file >= 0) close(file);
  bytes.serialized_executable_deleter(bytes.serialized_executable);
  return error;
}

static PJRT_Error *describe(Program *program, PJRT_LoadedExecutable *loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args get = {
      .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE,
      .loaded_executable = loaded};
  CALL(PJRT_LoadedExecutable_GetExecutable, get);
  program->told = get.executable;
  PJRT_Executable_OutputElementTypes_Args types = {
      .struct_size = PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE,
      .executable = get.executable};
  CALL(PJRT_Executable_OutputElementTypes, types);
  PJRT_Executable_OutputDimensions_Args dimensions = {
      .struct_size = PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE,
      .executable = get.executable};
  CALL(PJRT_Executable_OutputDimensions, dimensions);
  for (size_t i = 0; i < types.num_output_types; ++i) {
    if (!is_promised(types.output_types[i])) return unsupported("a result", types.output_types[i]);
    if (dimensions.dim_sizes[i] > MOST_DIMENSIONS) {
      return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                       "virtual TPU: a result has %zu dimensions, expected %d at most",
                       dimensions.dim_sizes[i], MOST_DIMENSIONS);
    }
  }
  program->results = types.num_output_types;
  program->types = types.output_types;
  program->dimensions = dimensions.dims;
  program->ranks = dimensions.dim_sizes;
  return send_program(program, get.executable);
}

static char *device_list(PJRT_Device *const *devices, size_t count) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  for (size_t i = 0; i < count; ++i) {
    fprintf(stream, "%s%d", i == 0 ? "" : ",", device_id(devices[i]));
  }
  fclose(stream);
  return text;
}

static Program *find_program(const PJRT_LoadedExecutable *executable) {
  Program *one = programs;
  while (one != NULL && one->executable != executable) one = one->next;
  return one;
}

static void free_loan(Loan *one) {
  job_send(-1, "drop %d", one->number);
  munmap(one->segment, one->segment->size);
  close(one->file);
  free(one);
}

static void free_program(Program *program) {
  for (Loan *one = program->free, *next; one != NULL; one = next) {
    next = one->next;
    free_loan(one);
  }
  PJRT_Executable_Destroy_Args destroy = {.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE,
                                          .executable = program->told};
  if (program->told != NULL) backend->PJRT_Executable_Destroy(&destroy);
  free(program->devices);
  free(program->donated);
  free(program);
}

// One user less. The last one of a program that is no more frees it.
static void leave_program(Program *program) {
  if (--program->users > 0 || program->executable != NULL) return;
  job_send(-1, "forget %d", program->number);
  free_program(program);
}

void meeting_forget(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Program **link = &programs;
  while (*link != NULL && (*link)->executable != executable) link = &(*link)->next;
  Program *program = *link;
  if (program != NULL) {
    *link = program->next;
    program->executable = NULL;
    ++program->users;
    leave_program(program);
  }
  pthread_mutex_unlock(&lock);
}

// --- Segments

static Array *place(Array *array, uint64_t *end) {
  array->offset = (*end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  *end = array->offset + array->size;
  return array;
}

static PJRT_Error *measure_argument(Array *array, PJRT_Buffer *buffer, uint64_t *end) {
  PJRT_Buffer_ElementType_Args type = {.struct_size = PJRT_Buffer_ElementType_Args_STRUCT_SIZE,
                                       .buffer = buffer};
  CALL(PJRT_Buffer_ElementType, type);
  PJRT_Buffer_Dimensions_Args shape = {.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
                                       .buffer = buffer};
  CALL(PJRT_Buffer_Dimensions, shape);
  PJRT_Buffer_DynamicDimensionIndices_Args dynamic = {
      .struct_size = PJRT_Buffer_DynamicDimensionIndices_Args_STRUCT_SIZE, .buffer = buffer};
  CALL(PJRT_Buffer_DynamicDimensionIndices, dynamic);
  if (dynamic.num_dynamic_dims > 0) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "virtual TPU: an argument has a dimension of dynamic size: a program over "
                     "several processes takes none");
  }
  if (shape.num_dims > MOST_DIMENSIONS) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "virtual TPU: an argument has %zu dimensions, expected %d at most",
                     shape.num_dims, MOST_DIMENSIONS);
  }
  if (element_size(type.type) == 0) return unsupported("an argument", type.type);
  array->type = type.type;
  array->dimensions_count = (int64_t)shape.num_dims;
  array->size = element_size(type.type);
  for (size_t i = 0; i < shape.num_dims; ++i) {
    array->dimensions[i] = shape.dims[i];
    array->size *= (uint64_t)shape.dims[i];
  }
  place(array, end);
  return NULL;
}

static void measure_results(const Program *program, Segment *segment, int64_t device,
                            uint64_t *end) {
  const int64_t *next = program->dimensions;
  for (size_t i = 0; i < program->results; ++i) {
    Array *array = segment_result(segment, device, (int64_t)i);
    array->type = program->types[i];
    array->dimensions_count = (int64_t)program->ranks[i];
    array->size = element_size(program->types[i]);
    for (size_t k = 0; k < program->ranks[i]; ++k) {
      array->dimensions[k] = *next;
      array->size *= (uint64_t)*next++;
    }
    place(array, end);
  }
}

// Write a segment's head for this call into `head`, which has room for it.
static PJRT_Error *plan(const Program *program, const PJRT_LoadedExecutable_Execute_Args *args,
                        PJRT_Device *const *devices, Segment *head) {
  *head = (Segment){.devices = (int64_t)args->num_devices,
                    .arguments = (int64_t)args->num_args,
                    .results = (int64_t)program->results};
  uint64_t end = sizeof *head + args->num_devices * segment_device_size(head);
  for (size_t i = 0; i < args->num_devices; ++i) {
    segment_device(head, (int64_t)i)->id = device_id(devices[i]);
    for (size_t k = 0; k < args->num_args; ++k) {
      PJRT_Error *error = measure_argument(segment_argument(head, (int64_t)i, (int64_t)k),
                                           args->argument_lists[i][k], &end);
      if (error != NULL) return error;
    }
    measure_results(program, head, (int64_t)i, &end);
  }
  head->size = end;
  return NULL;
}

static PJRT_Error *make_loan(const Segment *head, Loan **made) {
  const int file = memfd_create("xla-harness-segment", MFD_CLOEXEC);
  // Taken now: memory that is missing later would end the process with SIGBUS.
  const int wrong = file < 0 ? errno : posix_fallocate(file, 0, (off_t)head->size);
  void *at =
      wrong != 0 ? MAP_FAILED : mmap(NULL, head->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    const int why = wrong != 0 ? wrong : errno;
    if (file >= 0) close(file);
    return error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                     "virtual TPU: no memory for %llu bytes that several processes share: %s",
                     (unsigned long long)head->size, strerror(why));
  }
  *made = calloc(1, sizeof **made);
  **made = (Loan){.number = ++loans_made, .file = file, .segment = at};
  job_send(file, "segment %d %llu", (*made)->number, (unsigned long long)head->size);
  return NULL;
}

// A segment with this head: one that an earlier execution has given back, or a new one.
static PJRT_Error *borrow(Program *program, const Segment *head, size_t head_size, Loan **loan) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  Loan **link = &program->free;
  while (*link != NULL && memcmp((*link)->segment, head, head_size) != 0) link = &(*link)->next;
  *loan = *link;
  if (*loan != NULL) {
    *link = (*loan)->next;
  } else {
    error = make_loan(head, loan);
    if (error == NULL) memcpy((*loan)->segment, head, head_size);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

// --- Tickets

static void fulfil(Ticket *ticket, size_t index, PJRT_Buffer *buffer, const char *why) {
  if (ticket->promises[index] == NULL) return;
  // The backend prints each error that it is given: what only says when has the first line.
  const int is_result = (index + 1) % (ticket->program->results + 1) != 0;
  const size_t size = why == NULL ? 0 : is_result ? strlen(why) : strcspn(why, "\n");
  PJRT_Client_FulfillAliasBuffer_Args args = {
      .struct_size = PJRT_Client_FulfillAliasBuffer_Args_STRUCT_SIZE,
      .client = ticket->client,
      .buffer = buffer,
      .status_code = why == NULL ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED,
      .error_message = why,
      .error_message_size = size,
      .fulfill_alias_buffer_cb = ticket->promises[index]};
  PJRT_Error *error = backend->PJRT_Client_FulfillAliasBuffer(&args);
  if (error != NULL) free(text_of(error));  // says again what we said
  if (buffer == NULL) return;
  PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                      .buffer = buffer};
  backend->PJRT_Buffer_Destroy(&destroy);
}

static PJRT_Error *buffer_from(const Ticket *ticket, PJRT_Device *device, const Array *array,
                               const void *data, PJRT_Buffer **buffer) {
  PJRT_Client_BufferFromHostBuffer_Args args = {
      .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
      .client = ticket->client,
      .data = data,
      .type = (PJRT_Buffer_Type)array->type,
      .dims = array->dimensions,
      .num_dims = (size_t)array->dimensions_count,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = device};
  CALL(PJRT_Client_BufferFromHostBuffer, args);
  *buffer = args.buffer;
  return await(args.done_with_host_buffer);
}

static size_t promises_of(const Ticket *ticket) {
  return (size_t)ticket->loan->segment->devices * (ticket->program->results + 1);
}

// The value that only says when: any will do.
static PJRT_Error *done_buffer(const Ticket *ticket, PJRT_Device *device, PJRT_Buffer **buffer) {
  static const int8_t zero;
  const Array scalar = {.type = PJRT_Buffer_Type_S8, .size = 1};
  return buffer_from(ticket, device, &scalar, &zero, buffer);
}

static void add(Ticket *ticket) {
  pthread_mutex_lock(&lock);
  ticket->later = all;
  ticket->from = &all;
  if (all != NULL) all->from = &ticket->later;
  all = ticket;
  pthread_mutex_unlock(&lock);
}

// Give back what an execution had.
static void end(Ticket *ticket) {
  const Segment *segment = ticket->loan->segment;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; ticket->number != 0 && i < (size_t)segment->devices; ++i) {
    ++turns_ended[segment_device(segment, (int64_t)i)->id];
  }
  ticket->loan->next = ticket->program->free;
  ticket->program->free = ticket->loan;
  leave_program(ticket->program);
  if (ticket->later != NULL) ticket->later->from = ticket->from;
  *ticket->from = ticket->later;
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&lock);
  free(ticket->devices);
  free(ticket->turns);
  free(ticket->copied);
  free(ticket->promises);
  free(ticket->site);
  free(ticket->own);
  free(ticket);
}

static void finish(Ticket *ticket, const char *why) {
  const Segment *segment = ticket->loan->segment;
  const size_t results = ticket->program->results;
  char *own = NULL;
  for (size_t i = 0, at = 0; i < (size_t)segment->devices; ++i) {
    for (size_t k = 0; k <= results; ++k, ++at) {
      PJRT_Buffer *buffer = NULL;
      PJRT_Error *error = NULL;
      if (why == NULL && k < results) {
        const Array *array = segment_result(segment, (int64_t)i, (int64_t)k);
        error = buffer_from(ticket, ticket->devices[i], array,
                            (const char *)segment + array->offset, &buffer);
      } else if (why == NULL) {
        error = done_buffer(ticket, ticket->devices[i], &buffer);
      }
      if (error != NULL) why = own = text_of(error);
      fulfil(ticket, at, why == NULL ? buffer : NULL, why);
    }
  }
  free(own);
  end(ticket);
}

// The ticket with that number, or any if it is 0, which nobody else will find then.
static Ticket *take_ticket(int number) {
  pthread_mutex_lock(&lock);
  Ticket **link = &tickets;
  while (*link != NULL && number != 0 && (*link)->number != number) link = &(*link)->next;
  Ticket *found = *link;
  if (found != NULL) *link = found->next;
  pthread_mutex_unlock(&lock);
  return found;
}

// In a thread of its own: it waits for Python, and Python may wait for what is read meanwhile.
static void *say_where(void *argument) {
  char *stacks = python_stacks();
  job_send(-1, "stacks\n%s", stacks == NULL ? "" : stacks);
  free(stacks);
  return argument;
}

// Run a function in a thread that nobody waits for; here when there can be no more threads.
static void detach(void *(*function)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, function, argument) == 0) {
    pthread_detach(thread);
  } else {
    function(argument);
  }
}

// What the job's executor says, in the thread that reads it.
static void hear(const char *line, const char *text) {
  const char *rest;
  Ticket *ticket;
  if ((rest = line_after(line, "done")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, NULL);
  } else if ((rest = line_after(line, "error")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, text);
  } else if (strcmp(line, "stacks") == 0) {
    detach(say_where, NULL);
  } else if (strcmp(line, "failed") == 0) {
    char *why = job_failure();
    while ((ticket = take_ticket(0)) != NULL) finish(ticket, why);
    free(why);
  }
}

// Wait until what was queued before on each of its devices has been posted.
static void wait_for_turn(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) {
    const int id = device_id(ticket->devices[i]);
    while (turns_taken[id] != ticket->turns[i]) pthread_cond_wait(&posted, &lock);
  }
}

static void end_turn(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) ++turns_taken[device_id(ticket->devices[i])];
  pthread_cond_broadcast(&posted);
}

// Wait until all arguments are where the executor reads them; why one is not, to be freed, or NULL.
static char *await_copies(Ticket *ticket) {
  char *why = NULL;
  for (size_t i = 0; i < ticket->copied_count; ++i) {
    PJRT_Error *error = await(ticket->copied[i]);
    char *text = error == NULL ? NULL : text_of(error);
    if (why == NULL) {
      why = text;
    } else {
      free(text);
    }
  }
  ticket->copied_count = 0;
  return why;
}

// Post one execution once its arguments have their values, in a thread of its own: another one,
// on other devices, may have to go first.
static void *post(void *argument) {
  Ticket *ticket = argument;
  char *why = await_copies(ticket);
  pthread_mutex_lock(&lock);
  wait_for_turn(ticket);
  const int sends = why == NULL && (ticket->next = tickets, tickets = ticket, 1);
  const int sent =
      sends && job_send(-1, "execute %d %d %d %s %s\n%s", ticket->number, ticket->loan->number,
                        ticket->program->number, ticket->program->devices, ticket->own,
                        ticket->site == NULL ? "" : ticket->site);
  end_turn(ticket);
  const int number = ticket->number;
  pthread_mutex_unlock(&lock);
  if (!sends) {
    finish(ticket, why);
  } else if (!sent || (why = job_failure()) != NULL) {
    // The job may have failed while this was on its way; whoever takes it first finishes it.
    Ticket *own = take_ticket(number);
    if (own != NULL) finish(own, why == NULL ? "virtual TPU: the job has ended" : why);
  }
  free(why);
  return NULL;
}

static PJRT_Error *promise(Ticket *ticket, PJRT_Device *device, const Array *array, size_t index,
                           PJRT_Buffer **buffer) {
  PJRT_Device_DefaultMemory_Args memory = {
      .struct_size = PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, .device = device};
  CALL(PJRT_Device_DefaultMemory, memory);
  PJRT_Client_CreateAliasBuffer_Args args = {
      .struct_size = PJRT_Client_CreateAliasBuffer_Args_STRUCT_SIZE,
      .client = ticket->client,
      .memory = memory.memory,
      .shape_dims = array->dimensions,
      .shape_num_dims = (size_t)array->dimensions_count,
      .shape_element_type = (PJRT_Buffer_Type)array->type};
  CALL(PJRT_Client_CreateAliasBuffer, args);
  *buffer = args.alias_buffer;
  ticket->promises[index] = args.fulfill_alias_buffer_cb;
  return NULL;
}

// The event that says that a device is done: that a buffer has its value which nobody else has.
static PJRT_Error *completion(Ticket *ticket, PJRT_Device *device, size_t index,
                              PJRT_Event **event) {
  const Array scalar = {.type = PJRT_Buffer_Type_S8, .size = 1};
  PJRT_Buffer *buffer;
  PJRT_Error *error = promise(ticket, device, &scalar, index, &buffer);
  if (error != NULL) return error;
  PJRT_Buffer_ReadyEvent_Args ready = {.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE,
                                       .buffer = buffer};
  if (event != NULL) {
    CALL(PJRT_Buffer_ReadyEvent, ready);
    *event = ready.event;
  }
  PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                      .buffer = buffer};
  CALL(PJRT_Buffer_Destroy, destroy);
  return NULL;
}

static int is_donated(const Program *program, const PJRT_ExecuteOptions *options, int64_t index) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == index) return 0;
  }
  for (size_t i = 0; i < program->donated_count; ++i) {
    if (program->donated[i] == index) return 1;
  }
  return 0;
}

// Start copying an argument to where the executor reads it. A copy under way outlives its buffer,
// so one that the program takes can be deleted at once, as Execute does.
static PJRT_Error *hand_over(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args,
                             size_t device, size_t index) {
  const Array *array = segment_argument(ticket->loan->segment, (int64_t)device, (int64_t)index);
  PJRT_Buffer *buffer = args->argument_lists[device][index];
  PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                        .src = buffer,
                                        .dst = (char *)ticket->loan->segment + array->offset,
                                        .dst_size = array->size};
  CALL(PJRT_Buffer_ToHostBuffer, copy);
  ticket->copied[ticket->copied_count++] = copy.event;
  if (!is_donated(ticket->program, args->options, (int64_t)index)) return NULL;
  PJRT_Buffer_Delete_Args delete = {.struct_size = PJRT_Buffer_Delete_Args_STRUCT_SIZE,
                                    .buffer = buffer};
  return backend->PJRT_Buffer_Delete(&delete);
}

static PJRT_Error *fill(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args) {
  const Segment *segment = ticket->loan->segment;
  size_t at = 0;
  for (size_t i = 0; i < args->num_devices; ++i) {
    for (size_t k = 0; k < args->num_args; ++k) {
      PJRT_Error *error = hand_over(ticket, args, i, k);
      if (error != NULL) return error;
    }
    for (size_t k = 0; k < ticket->program->results; ++k) {
      PJRT_Error *error =
          promise(ticket, ticket->devices[i], segment_result(segment, (int64_t)i, (int64_t)k), at++,
                  &args->output_lists[i][k]);
      if (error != NULL) return error;
    }
    PJRT_Event **event =
        args->device_complete_events == NULL ? NULL : &args->device_complete_events[i];
    PJRT_Error *error = completion(ticket, ticket->devices[i], at++, event);
    if (error != NULL) return error;
  }
  return NULL;
}

static PJRT_Error *make_program(PJRT_LoadedExecutable *executable,
                                const PJRT_LoadedExecutable_AddressableDevices_Args *found,
                                Program **made) {
  Program *program = calloc(1, sizeof *program);
  if (program == NULL) abort();
  program->number = ++programs_made;
  program->executable = executable;
  program->devices = device_list(found->addressable_devices, found->num_addressable_devices);
  program->devices_count = found->num_addressable_devices;
  PJRT_Error *error = describe(program, executable);
  if (error != NULL) {
    free_program(program);
    return error;
  }
  program->next = programs;
  programs = *made = program;
  return NULL;
}

// What is known of the executable, which has one user more then.
static PJRT_Error *program_of(PJRT_LoadedExecutable *executable,
                              const PJRT_LoadedExecutable_AddressableDevices_Args *found,
                              Program **program) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  *program = find_program(executable);
  if (*program == NULL) error = make_program(executable, found, program);
  if (error == NULL) ++(*program)->users;
  pthread_mutex_unlock(&lock);
  return error;
}

static PJRT_Error *new_ticket(const PJRT_LoadedExecutable_Execute_Args *args, Program *program,
                              PJRT_Device **devices, Ticket **made) {
  const Segment sizes = {.arguments = (int64_t)args->num_args,
                         .results = (int64_t)program->results};
  const size_t head_size = sizeof sizes + args->num_devices * segment_device_size(&sizes);
  Segment *head = calloc(1, head_size);
  Loan *loan;
  if (head == NULL) abort();
  PJRT_Error *error = plan(program, args, devices, head);
  if (error == NULL) error = borrow(program, head, head_size, &loan);
  free(head);
  if (error != NULL) return error;
  Ticket *ticket = calloc(1, sizeof *ticket);
  if (ticket == NULL) abort();
  *ticket = (Ticket){.program = program,
                     .devices = devices,
                     .loan = loan,
                     .client = devices_client_of(devices[0]),
                     .own = device_list(devices, args->num_devices)};
  ticket->turns = calloc(args->num_devices, sizeof *ticket->turns);
  ticket->copied = calloc(args->num_devices * args->num_args + 1, sizeof *ticket->copied);
  ticket->promises = calloc(promises_of(ticket), sizeof *ticket->promises);
  if (ticket->turns == NULL || ticket->copied == NULL || ticket->promises == NULL) abort();
  const char *given = args->options->call_location;
  ticket->site = given != NULL && *given != '\0' ? strdup(given) : python_site();
  add(ticket);
  *made = ticket;
  return NULL;
}

// The call fails: whatever was promised has no owner, and nobody is told of the execution.
static PJRT_Error *take_back(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args,
                             PJRT_Error *error) {
  free(await_copies(ticket));
  const size_t results = ticket->program->results, count = promises_of(ticket);
  for (size_t i = 0; i < count; ++i) fulfil(ticket, i, NULL, "virtual TPU: it was not executed");
  for (size_t i = 0; i < args->num_devices; ++i) {
    for (size_t k = 0; k < results; ++k) {
      PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                          .buffer = args->output_lists[i][k]};
      if (ticket->promises[i * (results + 1) + k] != NULL) backend->PJRT_Buffer_Destroy(&destroy);
    }
  }
  end(ticket);
  return error;
}

static int is_full(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) {
    const int id = device_id(ticket->devices[i]);
    if (turns_given[id] - turns_ended[id] >= MOST_QUEUED) return 1;
  }
  return 0;
}

static void queue(Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  pthread_mutex_lock(&lock);
  while (is_full(ticket)) pthread_cond_wait(&finished, &lock);
  ticket->number = ++tickets_made;
  for (size_t i = 0; i < count; ++i) {
    ticket->turns[i] = turns_given[device_id(ticket->devices[i])]++;
  }
  pthread_mutex_unlock(&lock);
  detach(post, ticket);
}

static PJRT_Error *submit(const PJRT_LoadedExecutable_Execute_Args *args, Program *program,
                          PJRT_Device **devices) {
  Ticket *ticket;
  PJRT_Error *error = new_ticket(args, program, devices, &ticket);
  if (error != NULL) {
    pthread_mutex_lock(&lock);
    leave_program(program);
    pthread_mutex_unlock(&lock);
    free(devices);
    return error;
  }
  error = fill(ticket, args);
  if (error != NULL) return take_back(ticket, args, error);
  queue(ticket);
  return NULL;
}

// The devices, to be freed, that the caller runs the program on; NULL if it is not as many as it
// says.
static PJRT_Device **chosen(const PJRT_LoadedExecutable_Execute_Args *args,
                            const PJRT_LoadedExecutable_AddressableDevices_Args *found) {
  PJRT_Device **devices = calloc(args->num_devices + 1, sizeof *devices);
  if (devices == NULL) abort();
  size_t count = 0;
  for (size_t i = 0; i < found->num_addressable_devices && count <= args->num_devices; ++i) {
    PJRT_Device *device = found->addressable_devices[i];
    if (args->execute_device != NULL ? device == args->execute_device
                                     : identity_is_own(device_id(device))) {
      devices[count++] = device;
    }
  }
  if (count == args->num_devices && count > 0) return devices;
  free(devices);
  return NULL;
}

static PJRT_Error *failed(void) {
  char *why = job_failure();
  PJRT_Error *error = why == NULL ? NULL : error_new(PJRT_Error_Code_ABORTED, "%s", why);
  free(why);
  return error;
}

PJRT_Error *meeting_execute(PJRT_LoadedExecutable_Execute_Args *args, int *met) {
  PJRT_LoadedExecutable_AddressableDevices_Args found = {
      .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE,
      .executable = args->executable};
  CALL(PJRT_LoadedExecutable_AddressableDevices, found);
  *met = found.num_addressable_devices > args->num_devices;
  const int is_thread = identity.processes == 1 && args->num_devices == 1;
  if (*met && is_thread && args->execute_device != NULL) {
    *met = !gather_here(&found, args->execute_device);
  }
  if (!*met) return NULL;
  if (args->options->num_send_ops > 0 || args->options->num_recv_ops > 0) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "virtual TPU: a program over several processes sends to its host or receives "
                     "from it: that works in a job of one process only");
  }
  PJRT_Error *error = job_join(hear);
  if (error == NULL) error = failed();
  if (error != NULL) return error;
  PJRT_Device **devices = chosen(args, &found);
  if (devices == NULL) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: process %d runs a program on %zu devices: expected as many as "
                     "the program has in this process",
                     identity.process, args->num_devices);
  }
  Program *program;
  error = program_of(args->executable, &found, &program);
  if (error == NULL) return submit(args, program, devices);
  free(devices);
  return error;
}

// Wait until nothing that the client executes is on its way; NULL is any client.
static void wait_for(const PJRT_Client *client) {
  if (!job_is_here()) return;  // a fork has none of the threads that would end it
  pthread_mutex_lock(&lock);
  for (const Ticket *one = all; one != NULL;) {
    const int waits = client == NULL || one->client == client;
    if (waits) pthread_cond_wait(&finished, &lock);
    one = waits ? all : one->later;
  }
  pthread_mutex_unlock(&lock);
}

void meeting_leave(const PJRT_Client *client) { wait_for(client); }

// For the end of a process: what it has queued, others may wait for.
VIRTUAL_TPU_EXPORT void virtual_tpu_settle(void) { wait_for(NULL); }
