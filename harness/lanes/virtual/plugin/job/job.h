#ifndef XLA_HARNESS_VIRTUAL_TPU_JOB_H_
#define XLA_HARNESS_VIRTUAL_TPU_JOB_H_

#include "api/api.h"

// --- lines.c
enum { MOST_LINE = 192 };
typedef struct {
  int socket;
  size_t used, taken;
  char text[MOST_LINE];
} Lines;
// Take in what has come, without waiting; 0 at the end of the connection, or when it sends what is
// no text or a line that is too long.
int lines_receive(Lines *lines);
// Return the next whole line, without its end, valid until the next call; NULL when there is none.
const char *lines_next(Lines *lines);
// Send a short printf-like line.
void lines_send(int socket, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Return what follows `word` and a space in a line; NULL when it begins otherwise.
const char *line_after(const char *line, const char *word);

// --- coordinator.c
enum { MOST_MEMBERS = 256, MOST_TOKEN = 128 };
struct addrinfo;
// Serve the discovery of so many processes in a thread of its own; 0, or an errno.
int coordinator_serve(const struct addrinfo *address, const char *token, int processes);

// --- megascale.c
// Read a clock that only goes forward.
int64_t milliseconds(void);
// Return whether a client created now makes this slice discover all others.
int megascale_discovers(void);
// Discover the other slices: returns when all have come, or an error at the deadline.
PJRT_Error *megascale_discover(void);

// --- job.c
// Is given each message, and a descriptor that came with it, to be closed, or -1.
typedef void (*JobReader)(const char *line, const char *text, int descriptor);
// Set the reader of the job's messages, before the job is joined.
void job_listen(JobReader reader);
// Join the job, once; NULL, or why that is not possible.
PJRT_Error *job_join(void);
// Return whether this process has a job to join.
int job_is_given(void);
// Return whether all processes of this one's job are ranks that were started on this machine.
int job_is_local(void);
// Return the job's state: JOB_NONE in a process that has not joined one, complete when all ranks
// have.
typedef enum { JOB_NONE, JOB_INCOMPLETE, JOB_COMPLETE, JOB_FAILED } JobState;
JobState job_state(void);
// Wait until all ranks of the job have joined it; an error when that will never be.
PJRT_Error *job_await(void);
// Return whether this process has joined the job, and not one that it was forked from.
int job_is_here(void);
// Send one message over a socket, with a descriptor if that is not -1; 0 when that is not possible.
int packet_send(int socket, int descriptor, const char *message, size_t size);
// Send a printf-like message to the job's executor, with a descriptor if that is not -1; 0 when the
// job has ended.
int job_send(int descriptor, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Return why the job has failed, to be freed; NULL as long as it has not.
char *job_failure(void);
PJRT_Error *job_error(void);  // the same
void job_fail(const char *why);

#endif  // XLA_HARNESS_VIRTUAL_TPU_JOB_H_
