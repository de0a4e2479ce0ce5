#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet/meeting.h"

// The job's executor calls these through ctypes: it has a CPU client with the devices of all ranks,
// and runs each rank's own program on that rank's devices. Programs of one launch meet in XLA's
// collectives, whether they are the same or not.

static PJRT_Client *client;
static PJRT_Device *const *devices;

// What one device of one launch does. Python reads `state` while it runs.
typedef struct {
  PJRT_LoadedExecutable *executable;
  Segment *segment;
  int64_t index;  // of the device within its segment
  int64_t launch;
  int64_t connection, ticket;  // of its rank
  int64_t hosts;               // whether it exchanges data with its host
  _Atomic int64_t state;       // 0 waits, 1 runs, 2 has ended
  char error[4096];
} Part;

// The host side of a part is its rank's.
typedef struct {
  HostSide side;
  const Part *part;
} RanksHost;

// What a device waits for.
typedef struct HostWait {
  struct HostWait *next;
  long long number;
  int64_t connection;  // of the rank that is asked
  int is_answered;
  char *error;
} HostWait;

static const char HOST_HAS_ENDED[] = "the process has ended that the program exchanges data with";
static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static HostWait *waits;
static long long waits_made;

// Who is told when a launch has ended: a rank, by its connection, of its own ticket.
typedef struct {
  int64_t connection, ticket;
  int64_t is_sent;
} Answer;

// One part in the queue of its device.
typedef struct Work {
  struct Work *next;
  struct Launch *launch;
  Part *part;
  PJRT_Buffer **arguments;
} Work;

// All parts of a launch. None is queued before all have their arguments, since the others would
// wait in a collective for one that has none.
typedef struct Launch {
  _Atomic int failed, running;
  Answer *answers;
  int answers_count, ended;
  int64_t number;
  Work work[];  // of each part
} Launch;

// A device runs its parts in the order of their launches, in a thread of its own. If two devices
// took the parts of two launches in different orders, both would wait in a collective for ever.
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t given;
  int has_thread;
  Work *first, **last;
} Queue;

static Queue *queues;

static void keep_text(char *text, size_t size, PJRT_Error *error) {
  char *whole = error_text(error);
  snprintf(text, size, "%s", whole == NULL ? "" : whole);
  free(whole);
}

// Create the client with so many devices; 0, or -1 and why.
VIRTUAL_TPU_EXPORT int virtual_tpu_executor_start(int count, char *why, size_t size) {
  static const char NAME[] = "cpu_device_count";
  const PJRT_NamedValue option = {SIZED(PJRT_NamedValue),       .name = NAME,
                                  .name_size = sizeof NAME - 1, .type = PJRT_NamedValue_kInt64,
                                  .int64_value = count,         .value_size = 1};
  PJRT_Client_Create_Args create = {SIZED(PJRT_Client_Create_Args), .create_options = &option,
                                    .num_options = 1};
  PJRT_Error *error = backend->PJRT_Client_Create(&create);
  if (error != NULL) {
    keep_text(why, size, error);
    return -1;
  }
  client = create.client;
  host_transfers_register();
  PJRT_Client_Devices_Args all = {SIZED(PJRT_Client_Devices_Args), .client = client};
  backend->PJRT_Client_Devices(&all);
  devices = all.devices;
  queues = allocate((size_t)count, sizeof *queues, "the devices' queues");
  for (int i = 0; i < count; ++i) {
    queues[i] = (Queue){.lock = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};
    queues[i].last = &queues[i].first;
  }
  return 0;
}

// --- What a program exchanges with its host

static char *await_answer(const Part *part, char way, int64_t channel, size_t size, int memory) {
  HostWait own = {.connection = part->connection};
  pthread_mutex_lock(&waits_lock);
  own.number = ++waits_made;
  own.next = waits;
  waits = &own;
  char text[160];
  const int length =
      snprintf(text, sizeof text, "host %lld %c %lld %lld %lld %zu", own.number, way,
               (long long)part->ticket, (long long)part->index, (long long)channel, size);
  const int sent = packet_send((int)part->connection, memory, text, (size_t)length);
  while (sent && !own.is_answered) pthread_cond_wait(&answered, &waits_lock);
  HostWait **link = &waits;
  while (*link != &own) link = &(*link)->next;
  *link = own.next;
  pthread_mutex_unlock(&waits_lock);
  return sent ? own.error : strdup(in_own_words(HOST_HAS_ENDED));
}

static char *ask(HostSide *side, char way, int64_t channel, void *data, size_t size) {
  int file;
  void *memory;
  PJRT_Error *error = memory_share(size + 1, &file, &memory);
  if (error != NULL) return error_text(error);
  if (way == '>') memcpy(memory, data, size);
  char *why = await_answer(((RanksHost *)side)->part, way, channel, size, file);
  if (way == '<' && why == NULL) memcpy(data, memory, size);
  munmap(memory, size + 1);
  close(file);
  return why;
}

static char *send_to_host(HostSide *side, int ordinal, int64_t channel, const void *data,
                          size_t size) {
  (void)ordinal;
  return ask(side, '>', channel, (void *)data, size);
}

static char *receive_from_host(HostSide *side, int ordinal, int64_t channel, void *data,
                               size_t size) {
  (void)ordinal;
  return ask(side, '<', channel, data, size);
}

// Take a rank's answer to what a device waits for: an error's text, or "" for none.
VIRTUAL_TPU_EXPORT void virtual_tpu_executor_hosted(int64_t number, const char *error) {
  pthread_mutex_lock(&waits_lock);
  HostWait *wait = waits;
  while (wait != NULL && wait->number != number) wait = wait->next;
  if (wait != NULL) {
    wait->is_answered = 1;
    wait->error = *error == '\0' ? NULL : strdup(error);
  }
  pthread_cond_broadcast(&answered);
  pthread_mutex_unlock(&waits_lock);
}

// Return whether a device waits for the host of this connection's rank.
VIRTUAL_TPU_EXPORT int virtual_tpu_executor_asks_host(int64_t connection) {
  pthread_mutex_lock(&waits_lock);
  int asks = 0;
  for (const HostWait *wait = waits; wait != NULL; wait = wait->next) {
    asks |= wait->connection == connection && !wait->is_answered;
  }
  pthread_mutex_unlock(&waits_lock);
  return asks;
}

// End what devices wait for from the rank of this connection, which has ended.
VIRTUAL_TPU_EXPORT void virtual_tpu_executor_host_has_ended(int64_t connection) {
  pthread_mutex_lock(&waits_lock);
  for (HostWait *wait = waits; wait != NULL; wait = wait->next) {
    if (wait->connection != connection || wait->is_answered) continue;
    wait->is_answered = 1;
    wait->error = strdup(in_own_words(HOST_HAS_ENDED));
  }
  pthread_cond_broadcast(&answered);
  pthread_mutex_unlock(&waits_lock);
}

// Load a serialised executable; NULL, and why.
VIRTUAL_TPU_EXPORT void *virtual_tpu_executor_load(const char *bytes, size_t bytes_size, char *why,
                                                   size_t size) {
  PJRT_Executable_DeserializeAndLoad_Args args = {SIZED(PJRT_Executable_DeserializeAndLoad_Args),
                                                  .client = client, .serialized_executable = bytes,
                                                  .serialized_executable_size = bytes_size};
  PJRT_Error *error = backend->PJRT_Executable_DeserializeAndLoad(&args);
  if (error == NULL) return args.loaded_executable;
  keep_text(why, size, error);
  return NULL;
}

static PJRT_Error *argument(const Part *part, int64_t index, PJRT_Device *device,
                            PJRT_Buffer **buffer) {
  const Array *array = segment_argument(part->segment, part->index, index);
  // Read where it lies: the segment stays as it is until the rank has its results.
  const void *data = (char *)part->segment + array->offset;
  PJRT_Client_BufferFromHostBuffer_Args args = array_args(array, data, client, device);
  TRY(PJRT_Client_BufferFromHostBuffer, args);
  *buffer = args.buffer;
  if (args.done_with_host_buffer != NULL) event_drop(args.done_with_host_buffer);
  return NULL;
}

static PJRT_Error *give_back(const Part *part, int64_t index, PJRT_Buffer *buffer) {
  const Array *array = segment_result(part->segment, part->index, index);
  char *to = (char *)part->segment + array->offset;
  int is_done;
  PJRT_Error *error = buffer_is_row_major(buffer, &is_done);
  if (error != NULL) return error;
  // The rank makes a buffer of it that has the usual layout.
  if (!is_done) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "a result has a layout of its own: a program over several "
                     "processes returns row-major arrays only");
  }
  error = buffer_copy_here(buffer, to, array->size, &is_done);
  if (error != NULL || is_done) return error;
  PJRT_Buffer_ToHostBuffer_Args args = {SIZED(PJRT_Buffer_ToHostBuffer_Args), .src = buffer,
                                        .dst = to, .dst_size = array->size};
  TRY(PJRT_Buffer_ToHostBuffer, args);
  return event_await(args.event);
}

static void destroy_all(PJRT_Buffer **buffers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (buffers[i] != NULL) buffer_drop(buffers[i]);
  }
}

static PJRT_Error *prepare(Work *work) {
  const Part *part = work->part;
  PJRT_Device *device = devices[segment_device(part->segment, part->index)->id];
  work->arguments =
      allocate((size_t)part->segment->arguments, sizeof *work->arguments, "arguments");
  for (int64_t i = 0; i < part->segment->arguments; ++i) {
    PJRT_Error *error = argument(part, i, device, &work->arguments[i]);
    if (error != NULL) return error;
  }
  return NULL;
}

static PJRT_Error *run(Part *part, PJRT_Buffer **arguments, PJRT_Buffer **results) {
  const Segment *segment = part->segment;
  PJRT_Device *device = devices[segment_device(segment, part->index)->id];
  PJRT_ExecuteOptions options = {SIZED(PJRT_ExecuteOptions), .launch_id = (int)part->launch};
  PJRT_Buffer *const *const argument_lists[1] = {arguments};
  PJRT_Buffer **const result_lists[1] = {results};
  PJRT_Event *done = NULL;
  PJRT_LoadedExecutable_Execute_Args execute = {SIZED(PJRT_LoadedExecutable_Execute_Args),
                                                .executable = part->executable,
                                                .options = &options,
                                                .argument_lists = argument_lists,
                                                .num_devices = 1,
                                                .num_args = (size_t)segment->arguments,
                                                .output_lists = result_lists,
                                                .device_complete_events = &done,
                                                .execute_device = device};
  part->state = 1;
  RanksHost host = {{send_to_host, receive_from_host}, part};
  PJRT_ExecuteContext_Destroy_Args context = {SIZED(PJRT_ExecuteContext_Destroy_Args)};
  PJRT_Error *error = part->hosts ? host_side_attach(&host.side, &options, &context.context) : NULL;
  if (error == NULL) error = backend->PJRT_LoadedExecutable_Execute(&execute);
  if (error == NULL) error = event_await(done);
  if (context.context != NULL) error_drop(backend->PJRT_ExecuteContext_Destroy(&context));
  for (int64_t i = 0; i < segment->results && error == NULL; ++i) {
    error = give_back(part, i, results[i]);
  }
  return error;
}

static void end_part(Work *work, PJRT_Error *error) {
  Part *part = work->part;
  if (error != NULL) {
    keep_text(part->error, sizeof part->error, error);
    work->launch->failed = 1;
  }
  if (work->arguments != NULL) destroy_all(work->arguments, part->segment->arguments);
  free(work->arguments);
  part->state = 2;
}

static void run_part(Work *work) {
  const int64_t count = work->part->segment->results;
  PJRT_Buffer **results = allocate((size_t)count, sizeof *results, "results");
  PJRT_Error *error = run(work->part, work->arguments, results);
  destroy_all(results, count);
  free(results);
  end_part(work, error);
}

// Answer at once if all went well. What a rank does not take in now, Python sends.
static void answer(const Launch *launch) {
  for (int i = 0; i < launch->answers_count && !launch->failed; ++i) {
    char text[32];
    Answer *rank = &launch->answers[i];
    const int size = snprintf(text, sizeof text, "done %d\n", (int)rank->ticket);
    rank->is_sent =
        send((int)rank->connection, text, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL) == size;
  }
}

static void end_launch(Launch *launch) {
  answer(launch);
  const ssize_t written = write(launch->ended, &launch->number, sizeof launch->number);
  if (written != (ssize_t)sizeof launch->number) abort();
  free(launch);
}

static Work *next_work(Queue *queue) {
  pthread_mutex_lock(&queue->lock);
  while (queue->first == NULL) pthread_cond_wait(&queue->given, &queue->lock);
  Work *work = queue->first;
  queue->first = work->next;
  if (queue->first == NULL) queue->last = &queue->first;
  pthread_mutex_unlock(&queue->lock);
  return work;
}

static void *work_off(void *argument) {
  for (;;) {
    Work *work = next_work(argument);
    Launch *launch = work->launch;
    run_part(work);
    if (--launch->running == 0) end_launch(launch);
  }
  return NULL;
}

static void queue_add(Queue *queue, Work *work) {
  pthread_mutex_lock(&queue->lock);
  *queue->last = work;
  queue->last = &work->next;
  pthread_t thread;
  if (!queue->has_thread) {
    if (pthread_create(&thread, NULL, work_off, queue) != 0) abort();
    pthread_detach(thread);
    queue->has_thread = 1;
  }
  pthread_mutex_unlock(&queue->lock);
  pthread_cond_signal(&queue->given);  // under the lock, the thread would wake to wait for it
}

// Queue all parts of a launch, each on its device: a collective waits there. At their end the ranks
// are told if all went well, and then the launch's number, 8 bytes, is written to `ended`; `parts`
// and `answers` must live until then.
VIRTUAL_TPU_EXPORT void virtual_tpu_executor_launch(Part *parts, int count, Answer *answers,
                                                    int answers_count, int ended) {
  Launch *launch = allocate(1, sizeof *launch + (size_t)count * sizeof launch->work[0], "a launch");
  launch->running = count;
  launch->answers = answers;
  launch->answers_count = answers_count;
  launch->ended = ended;
  launch->number = parts[0].launch;
  PJRT_Error *error = NULL;
  for (int i = 0; i < count; ++i) launch->work[i] = (Work){.launch = launch, .part = &parts[i]};
  for (int i = 0; i < count && error == NULL; ++i) error = prepare(&launch->work[i]);
  if (error == NULL) {
    for (int i = 0; i < count; ++i) {
      queue_add(&queues[segment_device(parts[i].segment, parts[i].index)->id], &launch->work[i]);
    }
    return;
  }
  for (int i = 0; i < count; ++i) end_part(&launch->work[i], i == 0 ? error : NULL);
  end_launch(launch);
}
