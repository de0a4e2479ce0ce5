// A program whose devices belong to several processes, or to threads that each run it on one. It is
// executed by the job's executor, once for all: this side hands over its devices' arguments, and
// gives the caller buffers that get their values when the results are there. As on hardware the
// caller does not wait, and what is queued for a device runs in that order.
#ifndef XLA_HARNESS_VIRTUAL_TPU_MEETING_H_
#define XLA_HARNESS_VIRTUAL_TPU_MEETING_H_

#include <pthread.h>
#include <time.h>

#include "meet/meet.h"
#include "meet/segment.h"

// A segment that the executor has too.
typedef struct Loan {
  struct Loan *next;
  int number, file;
  Segment *segment;
  struct Program *program;
  int users;  // an execution on its way, and results that lie in it
} Loan;

// A loaded executable that has met before; `known.object` is NULL when that is no more.
typedef struct Program {
  Known known;
  PJRT_Executable *executable;  // owns the types and dimensions of the results
  int number, users;            // executions that are on their way, and loans in use
  char *devices;                // of the whole program, in its order, as text: 0,1,2,3
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
  int has_summary;        // its error has only the first line of the reason
  int outlives;           // it has failed, and waits for calls of the host to return
  char *why;              // it has failed then
  int lacks_argument;     // it was not executed, since an argument has no value
  struct timespec since;  // when it was queued
  HostTransfers *transfers;
  char *own, *site;  // the devices as text, and the line of Python that it comes from
} Ticket;

// Guards all programs, loans and tickets.
extern pthread_mutex_t meeting_lock;

// --- meeting.c
// Make a buffer of that device without a value yet, and what gives it one.
PJRT_Error *promise_make(PJRT_Client *client, PJRT_Device *device, const Array *array,
                         PJRT_Buffer **buffer, PJRT_FulfillAliasBufferCallback **promise);
// Note that this process has to do with others, the first time.
void meeting_note(const void *caller);

// --- exchanges.c
// Learn whether a program exchanges anything with other devices.
PJRT_Error *program_exchanges(PJRT_LoadedExecutable *executable, int *exchanging);
// Find what is known of an executable, which has one user more then.
PJRT_Error *program_of(PJRT_LoadedExecutable *executable,
                       const PJRT_LoadedExecutable_AddressableDevices_Args *all, Program **program);
// Drop a user of a program. The last one of a program that is no more frees it. The lock is held.
void program_leave(Program *program);
// Return the devices' ids as a text such as 0,1,2,3, to be freed.
char *devices_text(PJRT_Device *const *devices, size_t count);

// --- segments.c
// Return an error if a result of that kind can't be promised.
PJRT_Error *segment_check_result(PJRT_Buffer_Type type, size_t dimensions);
// Describe an array, of a type that is handed over, without its place; or that of a buffer, or an
// error if it is none that can be handed over.
void array_measure(Array *array, PJRT_Buffer_Type type, const int64_t *dimensions, size_t count);
PJRT_Error *array_measure_buffer(Array *array, PJRT_Buffer *buffer);
// Make memory of so many bytes, at least one, that other processes can be given.
PJRT_Error *memory_share(uint64_t size, int *file, void **at);
// Write a segment's head for this call into `head`, which has room for it.
PJRT_Error *segment_plan(const Program *program, const PJRT_LoadedExecutable_Execute_Args *args,
                         PJRT_Device *const *devices, Segment *head);
// Borrow a segment with this head: one that an earlier execution has given back, or a new one.
PJRT_Error *loan_borrow(Program *program, const Segment *head, size_t head_size, Loan **loan);
// Drop a user of a loan: the last one gives it back to its program. The lock is held.
void loan_return(Loan *loan);
void loan_free(Loan *loan);

// --- copies.c
// Copy a buffer's value to `to`, in this thread; `copied` is 0, and nothing has happened, when it
// has none yet, or lies in memory otherwise than on the host.
PJRT_Error *buffer_copy_here(PJRT_Buffer *buffer, void *to, size_t size, int *copied);

// --- tickets.c
// Give a promise its buffer, which is destroyed, or `size` bytes of why there is none.
void promise_keep(PJRT_Client *client, PJRT_FulfillAliasBufferCallback *promise,
                  PJRT_Buffer *buffer, const char *why, size_t size);
// Make a buffer with a copy of the data.
PJRT_Error *array_copy(PJRT_Client *client, PJRT_Device *device, const Array *array,
                       const void *data, PJRT_Buffer **buffer);
// Run a function in a thread that nobody waits for; here when there can be no more threads.
void detach(void *(*function)(void *), void *argument);
void ticket_add(Ticket *ticket);
size_t ticket_promises(const Ticket *ticket);
// Keep a promise: give it the buffer, or say why there is none.
void ticket_fulfil(Ticket *ticket, size_t index, PJRT_Buffer *buffer, const char *why);
// Wait until all arguments are where the executor reads them; why one is not, to be freed, or NULL.
char *ticket_await_copies(Ticket *ticket);
// Send it to the executor when its arguments are there and it is its turn, without waiting for
// that.
void ticket_queue(Ticket *ticket);
// Give back what an execution had.
void ticket_end(Ticket *ticket);
// Return what the host gives for the ticket with that number, held; NULL for nothing.
HostTransfers *ticket_transfers(int number);

// --- host_requests.c
// Do what the executor asks of this process's host, in memory that it shares.
void host_request_hear(const char *text, int memory);

// --- transfers.c
// Hear from the executor what has become of transfers.
void transfers_hear(const char *line, const char *text);
// Wait until all that this process sends and receives has arrived.
void transfers_settle(void);
// End a client's transfers: wait until what it sends has arrived, and give up what it was to
// receive.
void transfers_leave(const PJRT_Client *client);

#endif  // XLA_HARNESS_VIRTUAL_TPU_MEETING_H_
