#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "job/job.h"

// Discovery as a multi-slice job does it: slice 0 coordinates, every slice joins once, and all go
// on when all have come. Whoever joins a second time is never answered: the others have come
// already.
//
// A slice sends "token TOKEN\n" and "join SLICE\n", and "leave\n" at its deadline: others who wait
// have theirs. It is told "welcome\n", or "refused\n" for another job's token; then "came SLICE\n"
// for each slice, "lost SLICE\n" for one that died before all had come, "again SLICE\n" when it had
// joined before, and at last "go SLICES\n". Any other line ends the connection.

#define TOKEN_VARIABLE "XLA_HARNESS_JOB_TOKEN"
#define DEADLINE_VARIABLE "VIRTUAL_TPU_DEADLINE"

enum {
  LEAST_TOKEN = 32,
  DEFAULT_PORT = 8080,
  DEFAULT_SECONDS = 20,
  MOST_SECONDS = 86400,
  LOOK_SECONDS = 1,  // of two looks at the job, beyond the deadline
  LAST_SECONDS = 3,  // when all processes have joined the job, which they do just before
  RETRY_MS = 10
};

// Who takes part is a slice, or a process where a slice has several.
static const char *member(void) {
  return identity.processes == identity.slices ? "slice" : "process";
}

typedef struct {
  char host[256], port[16];
} Address;

int megascale_discovers(void) {
  const char *guard = launch_value(LAUNCH_NO_DISCOVERY);
  return identity.slices > 1 && *launch_name(LAUNCH_COORDINATOR) != '\0' &&
         (guard == NULL || strcmp(guard, "true") != 0);
}

static Address split(const char *text) {
  Address address;
  snprintf(address.port, sizeof address.port, "%d", DEFAULT_PORT);
  snprintf(address.host, sizeof address.host, "%s", text);
  char *colon = strrchr(address.host, ':');
  if (colon != NULL) {
    snprintf(address.port, sizeof address.port, "%s", colon + 1);
    *colon = '\0';
  }
  return address;
}

static struct addrinfo *resolve(const Address *address) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *addresses = NULL;
  int port;
  if (!number_whole(address->port, 1, 0xFFFF, &port)) return NULL;
  return getaddrinfo(address->host, address->port, &hints, &addresses) == 0 ? addresses : NULL;
}

// Slice 0 serves for as long as its process lives, so that a late joiner finds somebody.
static PJRT_Error *coordinate(const Address *address, const char *token) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int served;
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  if (!served) {
    struct addrinfo *addresses = resolve(address);
    const int wrong =
        addresses == NULL ? 0 : coordinator_serve(addresses, token, identity.processes);
    served = addresses != NULL && wrong == 0;
    if (!served) {
      error = error_new(PJRT_Error_Code_UNAVAILABLE, "%s 0 can't listen on %s=%s:%s: %s", member(),
                        launch_name(LAUNCH_COORDINATOR), address->host, address->port,
                        addresses == NULL ? "no such address" : strerror(wrong));
    }
    if (addresses != NULL) freeaddrinfo(addresses);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int64_t milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// A connection to the coordinator, tried until `end`; -1 without one.
static int connect_by(const Address *address, int64_t end) {
  do {
    struct addrinfo *addresses = resolve(address);
    if (addresses != NULL) {
      const int joined = socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      // Bounds connect() too: a host that never answers would hold it for minutes.
      const int64_t rest = end - milliseconds();
      const struct timeval most = {.tv_sec = rest / 1000, .tv_usec = rest % 1000 * 1000 + 1};
      setsockopt(joined, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
      const int failed = rest <= 0 || connect(joined, addresses->ai_addr, addresses->ai_addrlen);
      freeaddrinfo(addresses);
      if (failed == 0) return joined;
      close(joined);
    }
    usleep(RETRY_MS * 1000);
  } while (milliseconds() < end);
  return -1;
}

// What a slice knows of its discovery.
typedef struct {
  int64_t end;
  int seconds;
  int welcome, again, complete, all_are_here;
  char seen[MOST_MEMBERS];
} Discovery;

// The members that have not come, as "1, 3".
static const char *absent(const char *seen, char *out, size_t size) {
  size_t used = 0;
  out[0] = '\0';
  for (int slice = 0; slice < identity.processes && used < size; ++slice) {
    if (seen[slice]) continue;
    const int more = snprintf(out + used, size - used, "%s%d", used > 0 ? ", " : "", slice);
    used += (size_t)more;
  }
  return out;
}

static PJRT_Error *late(const Discovery *discovery) {
  char text[512];
  if (discovery->again) {
    return error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                     "%s %d hung in a second discovery: the others have come "
                     "already and never come again (%d s); the client was created without "
                     "%s=true",
                     member(), identity.process, discovery->seconds,
                     launch_name(LAUNCH_NO_DISCOVERY));
  }
  return error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                   "%s %d waited %d s in its discovery for %s %s of %d", member(), identity.process,
                   discovery->seconds, member(), absent(discovery->seen, text, sizeof text),
                   identity.processes);
}

static PJRT_Error *died(int slice) {
  return error_new(PJRT_Error_Code_UNAVAILABLE, "%s %d%s died during the discovery of %s %d",
                   member(), slice, slice == 0 ? ", the coordinator," : "", member(),
                   identity.process);
}

// Learn from one line; 0 for one that no coordinator sends. An error ends the discovery.
static int learn(Discovery *discovery, const char *line, PJRT_Error **error) {
  int slice;
  const int last = identity.processes - 1;
  if (strcmp(line, "welcome") == 0) {
    discovery->welcome = 1;
  } else if (strcmp(line, "refused") == 0) {
    *error = error_new(PJRT_Error_Code_PERMISSION_DENIED,
                       "%s %d was refused by %s 0: expected the same " TOKEN_VARIABLE
                       " in all processes of the job",
                       member(), identity.process, member());
  } else if (number_whole(line_after(line, "came"), 0, last, &slice)) {
    discovery->seen[slice] = 1;
  } else if (number_whole(line_after(line, "again"), 0, last, &slice)) {
    discovery->again = 1;
  } else if (number_whole(line_after(line, "lost"), 0, last, &slice)) {
    *error = died(slice);
  } else if (number_whole(line_after(line, "go"), identity.processes, identity.processes, &slice)) {
    discovery->complete = 1;
  } else {
    return 0;
  }
  return 1;
}

// Whether there is more time than the deadline: where all processes of the job are on this machine,
// its executor sees whether those that have not come yet compute, and fails the job if they don't.
static int has_more_time(Discovery *discovery) {
  const JobState state = job_state();
  if (discovery->again || discovery->all_are_here || state == JOB_NONE || state == JOB_FAILED)
    return 0;
  discovery->all_are_here = state == JOB_COMPLETE;
  const int seconds = discovery->all_are_here ? LAST_SECONDS : LOOK_SECONDS;
  discovery->end = milliseconds() + (int64_t)seconds * 1000;
  return 1;
}

// Read until all have come, an error, or the end of the connection, after which 0 is returned.
static int follow(Discovery *discovery, int joined, PJRT_Error **error) {
  Lines lines = {.socket = joined};
  for (;;) {
    for (const char *line; (line = lines_next(&lines)) != NULL;) {
      if (!learn(discovery, line, error)) return 0;
      if (discovery->complete || *error != NULL) return 1;
    }
    const int64_t rest = discovery->end - milliseconds();
    struct pollfd polled = {.fd = joined, .events = POLLIN};
    if (rest <= 0 || poll(&polled, 1, (int)rest) == 0) {
      if (has_more_time(discovery)) continue;
      lines_send(joined, "leave\n");
      *error = late(discovery);
      return 1;
    }
    if (!lines_receive(&lines)) return 0;
  }
}

// A connection that ends before it was welcome is tried again: a coordinator in a crowd of
// strangers drops those who have not shown the token yet.
static PJRT_Error *discover(Discovery *discovery, const Address *address, const char *token) {
  for (;;) {
    const int joined = connect_by(address, discovery->end);
    if (joined < 0) {
      if (has_more_time(discovery)) continue;
      return error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                       "%s %d found no coordinator at %s=%s in %d s: %s 0 has not "
                       "started",
                       member(), identity.process, launch_name(LAUNCH_COORDINATOR),
                       launch_value(LAUNCH_COORDINATOR), discovery->seconds, member());
    }
    lines_send(joined, "token %s\njoin %d\n", token, identity.process);
    PJRT_Error *error = NULL;
    const int answered = follow(discovery, joined, &error);
    close(joined);
    if (answered) return error;
    if (discovery->welcome) return died(0);
    usleep(RETRY_MS * 1000);
  }
}

static int is_usable(const char *token) {
  const size_t size = token == NULL ? 0 : strlen(token);
  return size >= LEAST_TOKEN && size <= MOST_TOKEN && strspn(token, "0123456789abcdef") == size;
}

PJRT_Error *megascale_discover(void) {
  const char *text = launch_value(LAUNCH_COORDINATOR);
  if (text == NULL) return NULL;  // all slices are in this process
  if (identity.processes > MOST_MEMBERS) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT, "a job of %d processes: expected %d at most",
                     identity.processes, MOST_MEMBERS);
  }
  const char *token = getenv(TOKEN_VARIABLE);
  if (!is_usable(token)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     TOKEN_VARIABLE
                     ": expected %d to %d hexadecimal digits, the "
                     "same in all processes of the job; run_slices sets it",
                     LEAST_TOKEN, MOST_TOKEN);
  }
  Discovery discovery = {.seconds = DEFAULT_SECONDS};
  const char *deadline = getenv(DEADLINE_VARIABLE);
  if (deadline != NULL && *deadline != '\0' &&
      !number_whole(deadline, 1, MOST_SECONDS, &discovery.seconds)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     DEADLINE_VARIABLE "=%s: expected seconds from 1 to %d", deadline,
                     MOST_SECONDS);
  }
  if (job_is_local()) {
    PJRT_Error *error = job_join();
    if (error != NULL) return error;
  }
  discovery.end = milliseconds() + (int64_t)discovery.seconds * 1000;
  const Address address = split(text);
  if (identity.process == 0) {
    PJRT_Error *error = coordinate(&address, token);
    if (error != NULL) return error;
  }
  return discover(&discovery, &address, token);
}
