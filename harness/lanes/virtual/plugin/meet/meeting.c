#define _GNU_SOURCE
#include "meet/meeting.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// The call that executes such a program: it hands the arguments over, and gives the caller buffers
// that get their values when the results are there.

enum { MOST_COPIED_HERE = 1 << 20 };  // bytes
pthread_mutex_t meeting_lock = PTHREAD_MUTEX_INITIALIZER;

PJRT_Error *promise_make(PJRT_Client *client, PJRT_Device *device, const Array *array,
                         PJRT_Buffer **buffer, PJRT_FulfillAliasBufferCallback **promise) {
  PJRT_Device_DefaultMemory_Args memory = {SIZED(PJRT_Device_DefaultMemory_Args), .device = device};
  TRY(PJRT_Device_DefaultMemory, memory);
  PJRT_Client_CreateAliasBuffer_Args args = {SIZED(PJRT_Client_CreateAliasBuffer_Args),
                                             .client = client,
                                             .memory = memory.memory,
                                             .shape_dims = array->dimensions,
                                             .shape_num_dims = (size_t)array->dimensions_count,
                                             .shape_element_type = (PJRT_Buffer_Type)array->type};
  TRY(PJRT_Client_CreateAliasBuffer, args);
  *buffer = args.alias_buffer;
  *promise = args.fulfill_alias_buffer_cb;
  return NULL;
}

static PJRT_Error *promise(Ticket *ticket, PJRT_Device *device, const Array *array, size_t index,
                           PJRT_Buffer **buffer) {
  return promise_make(ticket->client, device, array, buffer, &ticket->promises[index]);
}

// Make the event that says that a device is done: that of a buffer which nobody else has.
static PJRT_Error *completion(Ticket *ticket, PJRT_Device *device, size_t index,
                              PJRT_Event **event) {
  const Array scalar = {.type = PJRT_Buffer_Type_S8, .size = 1};
  PJRT_Buffer *buffer;
  PJRT_Error *error = promise(ticket, device, &scalar, index, &buffer);
  if (error != NULL) return error;
  PJRT_Buffer_ReadyEvent_Args ready = {SIZED(PJRT_Buffer_ReadyEvent_Args), .buffer = buffer};
  if (event != NULL && (error = backend->PJRT_Buffer_ReadyEvent(&ready)) == NULL) {
    *event = ready.event;
  }
  buffer_drop(buffer);
  return error;
}

// Copy an argument to where the executor reads it, or start to: a large one takes longer than the
// caller should wait. A copy under way outlives its buffer.
static PJRT_Error *copy_argument(Ticket *ticket, PJRT_Buffer *buffer, const Array *array) {
  char *to = (char *)ticket->loan->segment + array->offset;
  int copied = 0;
  // Of an array that could not be computed the copy says so, too.
  if (array->size <= MOST_COPIED_HERE) {
    error_drop(buffer_copy_here(buffer, to, array->size, &copied));
  }
  if (copied) return NULL;
  PJRT_Buffer_ToHostBuffer_Args copy = {SIZED(PJRT_Buffer_ToHostBuffer_Args), .src = buffer,
                                        .dst = to, .dst_size = array->size};
  TRY(PJRT_Buffer_ToHostBuffer, copy);
  ticket->copied[ticket->copied_count++] = copy.event;
  return NULL;
}

// Return whether an argument is a donated parameter that the caller does not keep.
static int is_donated(const Program *program, const PJRT_ExecuteOptions *options, int64_t index) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == index) return 0;
  }
  for (size_t i = 0; i < program->donated_count; ++i) {
    if (program->donated[i] == index) return 1;
  }
  return 0;
}

// Hand an argument over. The caller may then delete a donated one at once, as after Execute.
static PJRT_Error *hand_over(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args,
                             size_t device, size_t index) {
  const Array *array = segment_argument(ticket->loan->segment, (int64_t)device, (int64_t)index);
  PJRT_Buffer *buffer = args->argument_lists[device][index];
  PJRT_Error *error = copy_argument(ticket, buffer, array);
  if (error != NULL) return error;
  if (!is_donated(ticket->program, args->options, (int64_t)index)) return NULL;
  PJRT_Buffer_Delete_Args delete = {SIZED(PJRT_Buffer_Delete_Args), .buffer = buffer};
  return backend->PJRT_Buffer_Delete(&delete);
}

static PJRT_Error *fill(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args) {
  const Segment *segment = ticket->loan->segment;
  size_t at = 0;
  for (size_t i = 0; i < args->num_devices; ++i) {
    memset(args->output_lists[i], 0, ticket->program->results * sizeof(PJRT_Buffer *));
    if (args->device_complete_events != NULL) args->device_complete_events[i] = NULL;
  }
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

static PJRT_Error *new_ticket(const PJRT_LoadedExecutable_Execute_Args *args, Program *program,
                              PJRT_Device **devices, Ticket **made) {
  const Segment sizes = {.arguments = (int64_t)args->num_args,
                         .results = (int64_t)program->results};
  const size_t head_size = sizeof sizes + args->num_devices * segment_device_size(&sizes);
  Segment *head = allocate(1, head_size, "a segment's head");
  Loan *loan;
  PJRT_Error *error = segment_plan(program, args, devices, head);
  if (error == NULL) error = loan_borrow(program, head, head_size, &loan);
  free(head);
  if (error != NULL) return error;
  Ticket *ticket = allocate(1, sizeof *ticket, "an execution");
  *ticket = (Ticket){.program = program,
                     .devices = devices,
                     .loan = loan,
                     .client = devices_client_of(devices[0]),
                     .own = devices_text(devices, args->num_devices)};
  ticket->transfers = host_transfers_new(args->options, devices, args->num_devices);
  ticket->turns = allocate(args->num_devices, sizeof *ticket->turns, "turns");
  ticket->copied =
      allocate(args->num_devices * args->num_args, sizeof *ticket->copied, "copies of arguments");
  ticket->promises = allocate(ticket_promises(ticket), sizeof *ticket->promises, "promises");
  const char *given = args->options->call_location;
  ticket->site = given != NULL && *given != '\0' ? strdup(given) : python_site();
  ticket_add(ticket);
  *made = ticket;
  return NULL;
}

// Take back what was promised by a call that fails; nobody is told of the execution.
static PJRT_Error *take_back(Ticket *ticket, const PJRT_LoadedExecutable_Execute_Args *args,
                             PJRT_Error *error) {
  free(ticket_await_copies(ticket));
  const size_t count = ticket_promises(ticket);
  for (size_t i = 0; i < count; ++i)
    ticket_fulfil(ticket, i, NULL, in_own_words("it was not executed"));
  results_discard(args, args->num_devices, ticket->program->results);
  ticket_end(ticket);
  return error;
}

static PJRT_Error *submit(const PJRT_LoadedExecutable_Execute_Args *args, Program *program,
                          PJRT_Device **devices) {
  Ticket *ticket;
  PJRT_Error *error = new_ticket(args, program, devices, &ticket);
  if (error != NULL) {
    pthread_mutex_lock(&meeting_lock);
    program_leave(program);
    pthread_mutex_unlock(&meeting_lock);
    free(devices);
    return error;
  }
  error = fill(ticket, args);
  if (error != NULL) return take_back(ticket, args, error);
  ticket_queue(ticket);
  return NULL;
}

// Return the devices that the caller runs the program on, to be freed; NULL if they are not as many
// as it says.
static PJRT_Device **chosen(const PJRT_LoadedExecutable_Execute_Args *args,
                            const PJRT_LoadedExecutable_AddressableDevices_Args *all) {
  PJRT_Device **devices = allocate(args->num_devices + 1, sizeof *devices, "a program's devices");
  size_t count = 0;
  for (size_t i = 0; i < all->num_addressable_devices && count <= args->num_devices; ++i) {
    PJRT_Device *device = all->addressable_devices[i];
    if (args->execute_device != NULL ? device == args->execute_device
                                     : identity_is_own(device_id(device))) {
      devices[count++] = device;
    }
  }
  if (count == args->num_devices) return devices;
  free(devices);
  return NULL;
}

// Run a program that exchanges nothing on each of the devices, as their other processes do on
// theirs: XLA takes all devices of a program, or one.
static PJRT_Error *run_on_each(const PJRT_LoadedExecutable_Execute_Args *args,
                               PJRT_Device *const *devices) {
  for (size_t i = 0; i < args->num_devices; ++i) {
    PJRT_ExecuteOptions options = *args->options;
    if (options.send_callbacks != NULL) options.send_callbacks += i;
    if (options.recv_callbacks != NULL) options.recv_callbacks += i;
    PJRT_LoadedExecutable_Execute_Args own = *args;
    own.options = &options;
    own.num_devices = 1;
    own.execute_device = devices[i];
    own.argument_lists += i;
    own.output_lists += i;
    if (own.device_complete_events != NULL) own.device_complete_events += i;
    PJRT_Error *error = unseen_execute(&own, CALLER);
    if (error != NULL) {
      results_discard(args, i, parameters_results(args->executable));
      return error;
    }
  }
  return NULL;
}

// Wait for all processes, unless the discovery of several slices does. Without it a launcher's
// worker that is done early would become a second rank too: pools hand out what is left to who is
// free.
PJRT_Error *meeting_await_all(void) {
  const int discovers = identity.slices > 1 && *launch_name(LAUNCH_COORDINATOR) != '\0';
  if (identity.processes == 1 || discovers || !job_is_given()) return NULL;
  PJRT_Error *error = job_join();
  return error == NULL ? job_await() : error;
}

void meeting_note(const void *caller) {
  static atomic_flag is_noted = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&is_noted)) event_write("meet", caller, NULL, "%s", "");
}

// Run a program whose devices meet, in the job's executor.
static PJRT_Error *run_together(const PJRT_LoadedExecutable_Execute_Args *args,
                                const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                                PJRT_Device **devices) {
  PJRT_Error *error = job_join();
  if (error == NULL) error = job_error();
  Program *program;
  if (error == NULL) error = program_of(args->executable, all, &program);
  if (error == NULL) meeting_note(CALLER);
  if (error == NULL) return submit(args, program, devices);
  free(devices);
  return error;
}

PJRT_Error *meeting_execute(PJRT_LoadedExecutable_Execute_Args *args, int *met) {
  PJRT_LoadedExecutable_AddressableDevices_Args all = {
      SIZED(PJRT_LoadedExecutable_AddressableDevices_Args), .executable = args->executable};
  TRY(PJRT_LoadedExecutable_AddressableDevices, all);
  *met = 0;
  if (all.num_addressable_devices <= args->num_devices) return NULL;
  int exchanging;
  PJRT_Error *error = program_exchanges(args->executable, &exchanging);
  if (error != NULL) return error;
  if (args->execute_device != NULL) {
    if (!exchanging) return NULL;
    const int is_thread = identity.processes == 1 && args->num_devices == 1;
    if (is_thread && gather_here(&all, args->execute_device)) return NULL;
  }
  *met = 1;
  PJRT_Device **devices = chosen(args, &all);
  if (devices == NULL) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "process %d runs a program on %zu devices: expected as many as "
                     "the program has in this process",
                     identity.process, args->num_devices);
  }
  // All devices may be other processes': JAX runs such a program too, and there is nothing to do.
  if (exchanging && args->num_devices > 0) return run_together(args, &all, devices);
  error = run_on_each(args, devices);
  free(devices);
  return error;
}
