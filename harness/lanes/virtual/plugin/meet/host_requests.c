#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meet/meeting.h"

// What a program that the job's executor runs sends to a rank's host, or receives from it. Executor
// and rank share the memory of each transfer, and its device waits for the rank's answer.

typedef struct {
  char way;  // > to the host, < from it
  int ticket, index, memory;
  long long number, channel;
  size_t size;
} HostRequest;

static char *serve(const HostRequest *request) {
  HostTransfers *transfers = ticket_transfers(request->ticket);
  char *why = NULL;
  void *data =
      mmap(NULL, request->size + 1, PROT_READ | PROT_WRITE, MAP_SHARED, request->memory, 0);
  if (data == MAP_FAILED) {
    why = error_text(error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                               "no memory for what a program exchanges with its host"));
  } else if (transfers == NULL) {
    why = error_text(error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                               "the program exchanges data with its host by channel "
                               "%lld, and the framework that executes it has no host side",
                               request->channel));
  } else if (request->way == '>') {
    why = host_transfers_send(transfers, (size_t)request->index, request->channel, data,
                              request->size);
  } else {
    why = host_transfers_receive(transfers, (size_t)request->index, request->channel, data,
                                 request->size);
  }
  if (data != MAP_FAILED) munmap(data, request->size + 1);
  host_transfers_leave(transfers, 1);
  return why;
}

// Answer in a thread of its own: the host's functions are Python's, and take as long as they like.
static void *answer(void *argument) {
  HostRequest *request = argument;
  char *why = serve(request);
  job_send(-1, "hosted %lld\n%s", request->number, why == NULL ? "" : why);
  free(why);
  close(request->memory);
  free(request);
  return NULL;
}

void host_request_hear(const char *text, int memory) {
  HostRequest *request = allocate(1, sizeof *request, "a request of the executor");
  request->memory = memory;
  if (sscanf(text, "%lld %c %d %d %lld %zu", &request->number, &request->way, &request->ticket,
             &request->index, &request->channel, &request->size) != 6) {
    abort();
  }
  detach(answer, request);
}
