#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "meet/meeting.h"

// Executions on their way: posted to the job's executor in the order of each device, and ended when
// it answers.

// Who queues more for a device waits: each execution has memory of its own. A result of so many
// bytes stays in it: to copy one takes longer, and its new memory longer still.
enum { MOST_DEVICES = 4096, MOST_QUEUED = 16, LARGE = 1 << 16, SECONDS_FOR_HOST = 2 };
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static Ticket *tickets, *all;
static int tickets_made;
// For each device: executions that were queued, that the executor has been told of, and that ended.
static uint64_t turns_given[MOST_DEVICES], turns_taken[MOST_DEVICES], turns_ended[MOST_DEVICES];

void promise_keep(PJRT_Client *client, PJRT_FulfillAliasBufferCallback *promise,
                  PJRT_Buffer *buffer, const char *why, size_t size) {
  PJRT_Client_FulfillAliasBuffer_Args args = {
      SIZED(PJRT_Client_FulfillAliasBuffer_Args),
      .client = client,
      .buffer = why == NULL ? buffer : NULL,
      .status_code = why == NULL ? PJRT_Error_Code_OK : PJRT_Error_Code_ABORTED,
      .error_message = why,
      .error_message_size = size,
      .fulfill_alias_buffer_cb = promise};
  error_drop(backend->PJRT_Client_FulfillAliasBuffer(&args));  // says again what we said
  if (buffer != NULL) buffer_drop(buffer);
}

// Return whether the promise is one that only says when.
static int is_completion(const Ticket *ticket, size_t promise) {
  return (promise + 1) % (ticket->program->results + 1) == 0;
}

void ticket_fulfil(Ticket *ticket, size_t index, PJRT_Buffer *buffer, const char *why) {
  if (ticket->promises[index] == NULL) return;
  // The backend prints each error that it is given: all but the first one have the first line.
  const int is_whole = !is_completion(ticket, index) && index == 0 && !ticket->has_summary;
  const size_t size = why == NULL ? 0 : is_whole ? strlen(why) : strcspn(why, "\n");
  promise_keep(ticket->client, ticket->promises[index], buffer, why, size);
}

PJRT_Error *array_copy(PJRT_Client *client, PJRT_Device *device, const Array *array,
                       const void *data, PJRT_Buffer **buffer) {
  PJRT_Client_BufferFromHostBuffer_Args args = array_args(array, data, client, device);
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  TRY(PJRT_Client_BufferFromHostBuffer, args);
  *buffer = args.buffer;
  return event_await(args.done_with_host_buffer);
}

// A result that lies in its loan for as long as it lives.
typedef struct {
  Loan *loan;
  PJRT_Event *released;
} Held;

static void release(PJRT_Error *error, void *argument) {
  Held *held = argument;
  error_drop(error);
  pthread_mutex_lock(&meeting_lock);
  loan_return(held->loan);
  pthread_mutex_unlock(&meeting_lock);
  event_drop(held->released);
  free(held);
}

static PJRT_Error *hold(const Ticket *ticket, PJRT_Device *device, const Array *array,
                        const void *data, PJRT_Buffer **buffer) {
  PJRT_Client_BufferFromHostBuffer_Args args = array_args(array, data, ticket->client, device);
  TRY(PJRT_Client_BufferFromHostBuffer, args);
  *buffer = args.buffer;
  Held *held = allocate(1, sizeof *held, "a result");
  *held = (Held){.loan = ticket->loan, .released = args.done_with_host_buffer};
  pthread_mutex_lock(&meeting_lock);
  ++ticket->loan->users;
  pthread_mutex_unlock(&meeting_lock);
  PJRT_Event_OnReady_Args when = {SIZED(PJRT_Event_OnReady_Args), .event = held->released,
                                  .callback = release, .user_arg = held};
  PJRT_Error *error = backend->PJRT_Event_OnReady(&when);
  if (error != NULL) {  // nobody would give the loan back
    buffer_drop(*buffer);
    *buffer = NULL;
    release(NULL, held);
  }
  return error;
}

static PJRT_Error *result_buffer(const Ticket *ticket, PJRT_Device *device, const Array *array,
                                 PJRT_Buffer **buffer) {
  const void *data = (const char *)ticket->loan->segment + array->offset;
  return array->size < LARGE ? array_copy(ticket->client, device, array, data, buffer)
                             : hold(ticket, device, array, data, buffer);
}

size_t ticket_promises(const Ticket *ticket) {
  return (size_t)ticket->loan->segment->devices * (ticket->program->results + 1);
}

// Make the value that only says when: any will do.
static PJRT_Error *done_buffer(const Ticket *ticket, PJRT_Device *device, PJRT_Buffer **buffer) {
  static const int8_t zero;
  const Array scalar = {.type = PJRT_Buffer_Type_S8, .size = 1};
  return array_copy(ticket->client, device, &scalar, &zero, buffer);
}

void ticket_add(Ticket *ticket) {
  pthread_mutex_lock(&meeting_lock);
  ticket->later = all;
  ticket->from = &all;
  if (all != NULL) all->from = &ticket->later;
  all = ticket;
  pthread_mutex_unlock(&meeting_lock);
}

void ticket_end(Ticket *ticket) {
  const Segment *segment = ticket->loan->segment;
  host_transfers_leave(ticket->transfers, (size_t)segment->devices);
  pthread_mutex_lock(&meeting_lock);
  for (size_t i = 0; ticket->number != 0 && i < (size_t)segment->devices; ++i) {
    ++turns_ended[segment_device(segment, (int64_t)i)->id];
  }
  loan_return(ticket->loan);
  program_leave(ticket->program);
  if (ticket->later != NULL) ticket->later->from = ticket->from;
  *ticket->from = ticket->later;
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&meeting_lock);
  free(ticket->devices);
  free(ticket->turns);
  free(ticket->copied);
  free(ticket->promises);
  free(ticket->site);
  free(ticket->own);
  free(ticket->why);
  free(ticket);
}

// Write an event for an execution's error. XLA begins like this where an argument has no value.
static void record_error(const Ticket *ticket, const char *why) {
  char *text;
  const char *start = ticket->lacks_argument ? "Error preparing computation: " : "";
  if (asprintf(&text, "%s%s", start, why) < 0) abort();
  unseen_error(NULL, &ticket->since, text);
  free(text);
}

void detach(void *(*function)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, function, argument) == 0) {
    pthread_detach(thread);
  } else {
    function(argument);
  }
}

// --- Executions that fail while the host still works for them
// The framework frees the functions of its host side when the devices are done. So the results fail
// at once, and the devices are done when the last call of such a function has returned.

static void fail_promises(Ticket *ticket, const char *why, int completions) {
  const size_t count = ticket_promises(ticket);
  for (size_t at = 0; at < count; ++at) {
    if (is_completion(ticket, at) == completions) ticket_fulfil(ticket, at, NULL, why);
  }
}

static void *end_with_host(void *argument) {
  Ticket *ticket = argument;
  host_transfers_await(ticket->transfers, (size_t)ticket->loan->segment->devices);
  fail_promises(ticket, ticket->why, 1);
  ticket_end(ticket);
  return NULL;
}

static void fail_before_host(Ticket *ticket, const char *why) {
  fail_promises(ticket, why, 0);
  record_error(ticket, why);
  ticket->why = strndup(why, strcspn(why, "\n"));
  pthread_mutex_lock(&meeting_lock);
  ticket->outlives = 1;
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&meeting_lock);
  detach(end_with_host, ticket);
}

static void finish(Ticket *ticket, const char *why) {
  const Segment *segment = ticket->loan->segment;
  if (why != NULL && host_transfers_run(ticket->transfers, (size_t)segment->devices)) {
    fail_before_host(ticket, why);
    return;
  }
  const size_t results = ticket->program->results;
  char *own = NULL;
  for (size_t i = 0, at = 0; i < (size_t)segment->devices; ++i) {
    for (size_t k = 0; k <= results; ++k, ++at) {
      PJRT_Buffer *buffer = NULL;
      PJRT_Error *error = NULL;
      if (why == NULL && k < results) {
        const Array *array = segment_result(segment, (int64_t)i, (int64_t)k);
        error = result_buffer(ticket, ticket->devices[i], array, &buffer);
      } else if (why == NULL) {
        error = done_buffer(ticket, ticket->devices[i], &buffer);
      }
      if (error != NULL) why = own = error_text(error);
      ticket_fulfil(ticket, at, buffer, why);
    }
  }
  if (why != NULL) record_error(ticket, why);
  free(own);
  ticket_end(ticket);
}

// Fail an execution of a job that can't go on: the first to end has the whole reason, the others
// its first line.
static void fail(Ticket *ticket, const char *why) {
  static atomic_flag is_given = ATOMIC_FLAG_INIT;
  ticket->has_summary = atomic_flag_test_and_set(&is_given);
  finish(ticket, why);
}

// Take the ticket with that number, or the oldest one if it is 0, which nobody else will find then.
static Ticket *take_ticket(int number) {
  pthread_mutex_lock(&meeting_lock);
  Ticket **link = &tickets;
  while (*link != NULL && (number == 0 ? (*link)->next != NULL : (*link)->number != number)) {
    link = &(*link)->next;
  }
  Ticket *ticket = *link;
  if (ticket != NULL) *link = ticket->next;
  pthread_mutex_unlock(&meeting_lock);
  return ticket;
}

// Send the stacks, in a thread of its own: it waits for Python, and Python may wait for what is
// read meanwhile.
static void *say_where(void *argument) {
  char *stacks = python_stacks();
  job_send(-1, "stacks\n%s", stacks == NULL ? "" : stacks);
  free(stacks);
  return argument;
}

HostTransfers *ticket_transfers(int number) {
  pthread_mutex_lock(&meeting_lock);
  Ticket *ticket = tickets;
  while (ticket != NULL && ticket->number != number) ticket = ticket->next;
  HostTransfers *transfers = ticket == NULL ? NULL : ticket->transfers;
  if (transfers != NULL) host_transfers_hold(transfers);
  pthread_mutex_unlock(&meeting_lock);
  return transfers;
}

static void hear(const char *line, const char *text, int descriptor) {
  const char *rest;
  Ticket *ticket;
  if ((rest = line_after(line, "done")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, NULL);
  } else if ((rest = line_after(line, "error")) != NULL) {
    if ((ticket = take_ticket(atoi(rest))) != NULL) finish(ticket, text);
  } else if ((rest = line_after(line, "host")) != NULL) {
    host_request_hear(rest, descriptor);
  } else if (strcmp(line, "stacks") == 0) {
    detach(say_where, NULL);
  } else if (strcmp(line, "failed") == 0) {
    char *why = job_failure();
    while ((ticket = take_ticket(0)) != NULL) fail(ticket, why);
    free(why);
  }
  transfers_hear(line, text);
}

// Return whether what was queued before on each of its devices has been posted.
static int is_its_turn(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) {
    if (turns_taken[device_id(ticket->devices[i])] != ticket->turns[i]) return 0;
  }
  return 1;
}

static void end_turn(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) ++turns_taken[device_id(ticket->devices[i])];
  pthread_cond_broadcast(&posted);
}

char *ticket_await_copies(Ticket *ticket) {
  char *why = NULL;
  for (size_t i = 0; i < ticket->copied_count; ++i) {
    PJRT_Error *error = event_await(ticket->copied[i]);
    char *text = error == NULL ? NULL : error_text(error);
    if (why == NULL) {
      why = text;
    } else {
      free(text);
    }
  }
  ticket->copied_count = 0;
  return why;
}

// Post one execution once its arguments have their values and it is its turn.
static void *post(void *argument) {
  Ticket *ticket = argument;
  char *why = ticket_await_copies(ticket);
  pthread_mutex_lock(&meeting_lock);
  while (!is_its_turn(ticket)) pthread_cond_wait(&posted, &meeting_lock);
  const int sends = why == NULL && (ticket->next = tickets, tickets = ticket, 1);
  const int sent =
      sends && job_send(-1, "execute %d %d %d %s %s\n%s", ticket->number, ticket->loan->number,
                        ticket->program->number, ticket->program->devices, ticket->own,
                        ticket->site == NULL ? "" : ticket->site);
  end_turn(ticket);
  const int number = ticket->number;
  pthread_mutex_unlock(&meeting_lock);
  if (!sends) {
    ticket->lacks_argument = 1;
    finish(ticket, why);
  } else if (!sent || (why = job_failure()) != NULL) {
    // The job may have failed while this was on its way; whoever takes it first finishes it.
    Ticket *own = take_ticket(number);
    if (own != NULL) fail(own, why == NULL ? in_own_words("the job has ended") : why);
  }
  free(why);
  return NULL;
}

// Return whether all copies have been made, so that to wait for them takes no time.
static int has_copies(const Ticket *ticket) {
  for (size_t i = 0; i < ticket->copied_count; ++i) {
    PJRT_Event_IsReady_Args args = {SIZED(PJRT_Event_IsReady_Args), .event = ticket->copied[i]};
    PJRT_Error *error = ticket->copied[i] == NULL ? NULL : backend->PJRT_Event_IsReady(&args);
    if (error != NULL) {
      error_drop(error);
      return 0;
    }
    if (ticket->copied[i] != NULL && !args.is_ready) return 0;
  }
  return 1;
}

static int is_full(const Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  for (size_t i = 0; i < count; ++i) {
    const int id = device_id(ticket->devices[i]);
    if (turns_given[id] - turns_ended[id] >= MOST_QUEUED) return 1;
  }
  return 0;
}

void ticket_queue(Ticket *ticket) {
  const size_t count = (size_t)ticket->loan->segment->devices;
  pthread_mutex_lock(&meeting_lock);
  while (is_full(ticket)) pthread_cond_wait(&finished, &meeting_lock);
  ticket->number = ++tickets_made;
  clock_gettime(CLOCK_MONOTONIC, &ticket->since);
  for (size_t i = 0; i < count; ++i) {
    ticket->turns[i] = turns_given[device_id(ticket->devices[i])]++;
  }
  const int waits = !is_its_turn(ticket);
  pthread_mutex_unlock(&meeting_lock);
  if (waits || !has_copies(ticket)) {
    detach(post, ticket);  // another one, on other devices, may have to go first
  } else {
    post(ticket);
  }
}

static int is_of(const Ticket *ticket, const PJRT_Client *client) {
  return client == NULL || ticket->client == client;
}

// Count the executions of the client that have failed and are not over: their host may never
// return.
static int outliving(const PJRT_Client *client) {
  int count = 0;
  for (const Ticket *ticket = all; ticket != NULL; ticket = ticket->later) {
    count += is_of(ticket, client) && ticket->outlives;
  }
  return count;
}

// Wait until nothing that the client executes is on its way; NULL is any client. Returns how many
// executions of it still have a host that works for them, after some seconds.
static int wait_for(const PJRT_Client *client) {
  if (!job_is_here()) return 0;  // a fork has none of the threads that would end it
  pthread_mutex_lock(&meeting_lock);
  for (const Ticket *ticket = all; ticket != NULL;) {
    const int waits = is_of(ticket, client) && !ticket->outlives;
    if (waits) pthread_cond_wait(&finished, &meeting_lock);
    ticket = waits ? all : ticket->later;
  }
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += SECONDS_FOR_HOST;
  int count;
  do {
    count = outliving(client);
  } while (count > 0 && pthread_cond_timedwait(&finished, &meeting_lock, &until) == 0);
  pthread_mutex_unlock(&meeting_lock);
  return count;
}

// --- Buffers that end while they are used.
// The backend waits where a buffer is destroyed whose copy has not been made yet, and the thread
// that destroys it may be the one that has to bring about what the copy waits for. A TPU's does not
// wait. So a thread of our own destroys what the ranks of a job give up.
typedef struct Ending {
  struct Ending *next;
  PJRT_Buffer *buffer;
} Ending;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t given, ended;
  int has_thread, busy;
  Ending *first, **last;
} endings = {PTHREAD_MUTEX_INITIALIZER,
             PTHREAD_COND_INITIALIZER,
             PTHREAD_COND_INITIALIZER,
             0,
             0,
             NULL,
             &endings.first};

static void *end_buffers(void *unused) {
  pthread_mutex_lock(&endings.lock);
  for (;;) {
    endings.busy = endings.first != NULL;
    if (!endings.busy) pthread_cond_broadcast(&endings.ended);
    while (endings.first == NULL) pthread_cond_wait(&endings.given, &endings.lock);
    endings.busy = 1;
    Ending *ending = endings.first;
    endings.first = ending->next;
    if (endings.first == NULL) endings.last = &endings.first;
    pthread_mutex_unlock(&endings.lock);
    buffer_drop(ending->buffer);
    free(ending);
    pthread_mutex_lock(&endings.lock);
  }
  return unused;
}

static PJRT_Error *destroy_buffer(PJRT_Buffer_Destroy_Args *args) {
  if (identity.processes == 1 || !job_is_here()) return bridge_PJRT_Buffer_Destroy(args);
  Ending *ending = allocate(1, sizeof *ending, "the end of a buffer");
  *ending = (Ending){.buffer = args->buffer};
  pthread_mutex_lock(&endings.lock);
  pthread_t thread;
  if (!endings.has_thread && pthread_create(&thread, NULL, end_buffers, NULL) == 0) {
    pthread_detach(thread);
    endings.has_thread = 1;
  }
  *endings.last = ending;
  endings.last = &ending->next;
  endings.busy = 1;
  pthread_mutex_unlock(&endings.lock);
  pthread_cond_signal(&endings.given);  // under the lock, the thread would wake to wait for it
  return NULL;
}

static void await_endings(void) {
  pthread_mutex_lock(&endings.lock);
  while (endings.has_thread && endings.busy) pthread_cond_wait(&endings.ended, &endings.lock);
  pthread_mutex_unlock(&endings.lock);
}

void tickets_fill(PJRT_Api *api) {
  job_listen(hear);
  api->PJRT_Buffer_Destroy = destroy_buffer;
}

int meeting_leave(const PJRT_Client *client) {
  const int outlive = wait_for(client);
  transfers_leave(client);
  if (job_is_here()) await_endings();
  return outlive == 0;
}

// Wait at the end of a process until what it has queued has ended: others may wait for that.
VIRTUAL_TPU_EXPORT void virtual_tpu_settle(void) {
  wait_for(NULL);
  transfers_settle();
  unseen_settle();
}
