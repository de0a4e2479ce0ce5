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
} Asked;

static char *serve(const Asked *asked) {
  HostTransfers *transfers = ticket_transfers(asked->ticket);
  char *why = NULL;
  void *data = mmap(NULL, asked->size + 1, PROT_READ | PROT_WRITE, MAP_SHARED, asked->memory, 0);
  if (data == MAP_FAILED) {
    why =
        error_text(error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                             "virtual TPU: no memory for what a program exchanges with its host"));
  } else if (transfers == NULL) {
    why = error_text(error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                               "virtual TPU: the program exchanges data with its host by channel "
                               "%lld, and the framework that executes it has no host side",
                               asked->channel));
  } else if (asked->way == '>') {
    why = host_transfers_send(transfers, (size_t)asked->index, asked->channel, data, asked->size);
  } else {
    why =
        host_transfers_receive(transfers, (size_t)asked->index, asked->channel, data, asked->size);
  }
  if (data != MAP_FAILED) munmap(data, asked->size + 1);
  host_transfers_leave(transfers, 1);
  return why;
}

// In a thread of its own: the host's functions are Python's, and take as long as they like.
static void *answer(void *argument) {
  Asked *asked = argument;
  char *why = serve(asked);
  job_send(-1, "hosted %lld\n%s", asked->number, why == NULL ? "" : why);
  free(why);
  close(asked->memory);
  free(asked);
  return NULL;
}

void asked_hear(const char *request, int memory) {
  Asked *asked = allocate(1, sizeof *asked, "a request of the executor");
  asked->memory = memory;
  if (sscanf(request, "%lld %c %d %d %lld %zu", &asked->number, &asked->way, &asked->ticket,
             &asked->index, &asked->channel, &asked->size) != 6) {
    abort();
  }
  detach(answer, asked);
}
