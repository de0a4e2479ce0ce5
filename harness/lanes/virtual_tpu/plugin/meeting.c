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

// An executable that has met before.
typedef struct Program {
  struct Program *next;
  const PJRT_LoadedExecutable *executable;
  int number;
  char *devices;  // of the whole program, in its order, as text: 0,1,2,3
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
  struct Ticket *next;
  int number;
  Program *program;
  Loan *loan;
  PJRT_Client *client;
  PJRT_Device **devices;
  uint64_t *turns;  // of each of its devices
  PJRT_Event **copied;
  size_t copied_count;
  PJRT_FulfillAliasBufferCallback **promises;  // one a result, then one that only says when
  char *own, *site;  // the devices as text, and the line of Python that it comes from
} Ticket;

enum { MOST_DEVICES = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static Program *programs;
static Ticket *tickets;
static int programs_made, loans_made, tickets_made;
static uint64_t turns_given[MOST_DEVICES], turns_taken[MOST_DEVICES];

#define CALL(entry, args)                         \
  do {                                            \
    PJRT_Error *error_ = backend->entry(&(args)); \
    if (error_ != NULL) return error_;            \
  } while (0)

static size_t element_size(PJRT_Buffer_Type type) {
  switch (type) {
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
    case PJRT_Buffer_Type_TOKEN:
      return 0;
    default:
      return 1;  // of 8 bits; those of fewer take a byte each on the host
  }
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
  PJRT_Executable_OutputElementTypes_Args types = {
      .struct_size = PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE,
      .executable = get.executable};
  CALL(PJRT_Executable_OutputElementTypes, types);
  PJRT_Executable_OutputDimensions_Args dimensions = {
      .struct_size = PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE,
      .executable = get.executable};
  CALL(PJRT_Executable_OutputDimensions, dimensions);
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

static void free_loans(Program *program) {
  for (Loan *one = program->free, *next; one != NULL; one = next) {
    next = one->next;
    job_send(-1, "drop %d", one->number);
    munmap(one->segment, one->segment->size);
    close(one->file);
    free(one);
  }
  program->free = NULL;
}

void meeting_forget(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Program **link = &programs;
  while (*link != NULL && (*link)->executable != executable) link = &(*link)->next;
  Program *program = *link;
  if (program != NULL) {
    *link = program->next;
    // Executions that are on their way still use it, so the struct itself stays.
    program->executable = NULL;
    free_loans(program);
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
  if (shape.num_dims > MOST_DIMENSIONS) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "virtual TPU: an argument has %zu dimensions, expected %d at most",
                     shape.num_dims, MOST_DIMENSIONS);
  }
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
  PJRT_Client_FulfillAliasBuffer_Args args = {
      .struct_size = PJRT_Client_FulfillAliasBuffer_Args_STRUCT_SIZE,
      .client = ticket->client,
      .buffer = buffer,
      .status_code = why == NULL ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED,
      .error_message = why,
      .error_message_size = why == NULL ? 0 : strlen(why),
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
  pthread_mutex_lock(&lock);
  if (ticket->program->executable != NULL) {
    ticket->loan->next = ticket->program->free;
    ticket->program->free = ticket->loan;
  }
  pthread_mutex_unlock(&lock);
  free(ticket->devices);
  free(ticket->turns);
  free(ticket->promises);
  free(ticket->site);
  free(ticket->own);
  free(ticket);
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

// What the job's executor says, in the thread that reads it.
static void hear(const char *line, const char *text) {
  const char *rest;
  Ticket *ticket;
  if ((rest = line_after(line, "done")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, NULL);
  } else if ((rest = line_after(line, "error")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, text);
  } else if ((rest = line_after(line, "stacks")) != NULL) {
    char *stacks = python_stacks();
    job_send(-1, "stacks %s\n%s", rest, stacks == NULL ? "" : stacks);
    free(stacks);
  } else if (strcmp(line, "failed") == 0) {
    char *why = job_failure();
    while ((ticket = take_ticket(0)) != NULL) finish(ticket, why);
    pthread_cond_broadcast(&posted);
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

// Post one execution once its arguments have their values, in a thread of its own: another one,
// on other devices, may have to go first.
static void *post(void *argument) {
  Ticket *ticket = argument;
  char *why = NULL;
  for (size_t i = 0; i < ticket->copied_count; ++i) {
    PJRT_Error *error = await(ticket->copied[i]);
    if (error == NULL) continue;
    char *text = text_of(error);
    if (why == NULL) {
      why = text;
    } else {
      free(text);
    }
  }
  free(ticket->copied);
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

static PJRT_Error *program_of(PJRT_LoadedExecutable *executable,
                              const PJRT_LoadedExecutable_AddressableDevices_Args *found,
                              Program **program) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  *program = find_program(executable);
  if (*program == NULL) {
    *program = calloc(1, sizeof **program);
    (*program)->number = ++programs_made;
    (*program)->executable = executable;
    (*program)->devices = device_list(found->addressable_devices, found->num_addressable_devices);
    (*program)->devices_count = found->num_addressable_devices;
    error = describe(*program, executable);
    if (error == NULL) {
      (*program)->next = programs;
      programs = *program;
    } else {
      free(*program);
    }
  }
  pthread_mutex_unlock(&lock);
  return error;
}

static PJRT_Error *submit(const PJRT_LoadedExecutable_Execute_Args *args, Program *program,
                          PJRT_Device **devices) {
  const Segment sizes = {.arguments = (int64_t)args->num_args,
                         .results = (int64_t)program->results};
  const size_t head_size = sizeof sizes + args->num_devices * segment_device_size(&sizes);
  Segment *head = calloc(1, head_size);
  Ticket *ticket = calloc(1, sizeof *ticket);
  *ticket = (Ticket){.program = program, .devices = devices};
  PJRT_Error *error = plan(program, args, devices, head);
  if (error == NULL) error = borrow(program, head, head_size, &ticket->loan);
  free(head);
  if (error != NULL) {
    free(devices);
    free(ticket);
    return error;
  }
  PJRT_Client *client = devices_client();
  ticket->client = client;
  ticket->own = device_list(devices, args->num_devices);
  ticket->turns = calloc(args->num_devices, sizeof *ticket->turns);
  ticket->copied = calloc(args->num_devices * args->num_args + 1, sizeof *ticket->copied);
  ticket->promises = calloc(promises_of(ticket), sizeof *ticket->promises);
  ticket->site =
      args->options->call_location != NULL ? strdup(args->options->call_location) : python_site();
  error = fill(ticket, args);
  if (error != NULL) return error;
  pthread_mutex_lock(&lock);
  ticket->number = ++tickets_made;
  for (size_t i = 0; i < args->num_devices; ++i) {
    ticket->turns[i] = turns_given[device_id(devices[i])]++;
  }
  pthread_mutex_unlock(&lock);
  pthread_t thread;
  if (pthread_create(&thread, NULL, post, ticket) != 0) abort();
  pthread_detach(thread);
  return NULL;
}

PJRT_Error *meeting_execute(PJRT_LoadedExecutable_Execute_Args *args, int *met) {
  PJRT_LoadedExecutable_AddressableDevices_Args found = {
      .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE,
      .executable = args->executable};
  CALL(PJRT_LoadedExecutable_AddressableDevices, found);
  *met = found.num_addressable_devices > args->num_devices;
  if (!*met) return NULL;
  PJRT_Error *error = job_join(hear);
  if (error != NULL) return error;
  char *why = job_failure();
  if (why != NULL) {
    error = error_new(PJRT_Error_Code_ABORTED, "%s", why);
    free(why);
    return error;
  }
  PJRT_Device **devices = calloc(args->num_devices, sizeof *devices);
  size_t count = 0;
  for (size_t i = 0; i < found.num_addressable_devices; ++i) {
    PJRT_Device *device = found.addressable_devices[i];
    if (args->execute_device != NULL ? device == args->execute_device
                                     : identity_is_own(device_id(device))) {
      if (count < args->num_devices) devices[count] = device;
      ++count;
    }
  }
  if (count != args->num_devices) {
    free(devices);
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: a program with %zu devices of this process is to run on %zu",
                     count, args->num_devices);
  }
  Program *program;
  error = program_of(args->executable, &found, &program);
  if (error == NULL) return submit(args, program, devices);
  free(devices);
  return error;
}
