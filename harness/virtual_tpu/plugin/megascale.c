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

#include "plugin.h"

// Discovery as a multi-slice job does it: slice 0 coordinates, every slice joins once, and all go on
// when all have come. Who joins a second time is never answered: the others have come already.
//
// A joiner sends "join SLICE\n", and "leave\n" at its deadline: others who wait have theirs. It is
// told "came SLICE\n" for each slice, "lost SLICE\n" for one that died before all had come, "again
// SLICE\n" when it had joined before, and at last "go\n".

enum { MOST_SLICES = 256, MOST_WAITING = 1024, DEFAULT_PORT = 8080, RETRY_MS = 10 };

typedef struct {
  char host[256], port[16];
} Address;

typedef struct {
  int socket, slice;  // slice is -1 until it has said so
} Joiner;

static struct {
  int listener;
  int slices, came, complete;
  char seen[MOST_SLICES];
  Joiner joiners[MOST_WAITING];
  int count;
} job;

static const char *coordinator(void) {
  const char *address = getenv("MEGASCALE_COORDINATOR_ADDRESS");
  return address != NULL && *address != '\0' ? address : NULL;
}

int megascale_discovers(void) {
  const char *guard = getenv("SKIP_MEGASCALE_PJRT_CLIENT");
  return identity.slices > 1 && (guard == NULL || strcmp(guard, "true") != 0);
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
  struct addrinfo *found = NULL;
  if (atoi(address->port) > 0xFFFF) return NULL;  // which getaddrinfo would cut to 16 bits
  return getaddrinfo(address->host, address->port, &hints, &found) == 0 ? found : NULL;
}

static void tell(int socket, const char *word, int slice) {
  char line[32];
  const int size = slice < 0 ? snprintf(line, sizeof line, "%s\n", word)
                             : snprintf(line, sizeof line, "%s %d\n", word, slice);
  if (send(socket, line, (size_t)size, MSG_NOSIGNAL) != size) return;  // it is gone, and poll says so
}

static void tell_all(const char *word, int slice) {
  for (int i = 0; i < job.count; ++i) {
    if (job.joiners[i].slice >= 0) tell(job.joiners[i].socket, word, slice);
  }
}

static void joined(Joiner *joiner, int slice) {
  if (slice < 0 || slice >= job.slices) return;
  if (job.seen[slice]) {
    tell(joiner->socket, "again", slice);
    return;
  }
  job.seen[slice] = 1;
  for (int other = 0; other < job.slices; ++other) {
    if (job.seen[other] && other != slice) tell(joiner->socket, "came", other);
  }
  joiner->slice = slice;
  tell_all("came", slice);
  if (++job.came == job.slices) {
    job.complete = 1;
    tell_all("go", -1);
  }
}

static void left(int index) {
  const Joiner gone = job.joiners[index];
  close(gone.socket);
  job.joiners[index] = job.joiners[--job.count];
  if (gone.slice >= 0 && !job.complete) tell_all("lost", gone.slice);
}

static void *serve(void *unused) {
  (void)unused;
  struct pollfd polled[MOST_WAITING + 1];
  for (;;) {
    const int count = job.count;
    polled[0] = (struct pollfd){.fd = job.listener, .events = POLLIN};
    for (int i = 0; i < count; ++i) {
      polled[i + 1] = (struct pollfd){.fd = job.joiners[i].socket, .events = POLLIN};
    }
    if (poll(polled, (nfds_t)count + 1, -1) < 0) continue;
    for (int i = count - 1; i >= 0; --i) {
      if (polled[i + 1].revents == 0) continue;
      char line[32];
      const ssize_t size = recv(job.joiners[i].socket, line, sizeof line - 1, 0);
      if (size <= 0) {
        left(i);
        continue;
      }
      line[size] = '\0';
      int slice;
      if (sscanf(line, "join %d", &slice) == 1) joined(&job.joiners[i], slice);
      if (strcmp(line, "leave\n") == 0) job.joiners[i].slice = -1;
    }
    if (polled[0].revents != 0 && job.count < MOST_WAITING) {
      const int socket = accept4(job.listener, NULL, NULL, SOCK_CLOEXEC);
      if (socket >= 0) job.joiners[job.count++] = (Joiner){.socket = socket, .slice = -1};
    }
  }
  return NULL;
}

// Slice 0 serves for as long as its process lives, so that a late joiner finds somebody.
static PJRT_Error *coordinate(const Address *address) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int served;
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  if (!served) {
    struct addrinfo *found = resolve(address);
    const int on = 1;
    const int listener =
        found == NULL ? -1 : socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    pthread_t thread;
    job.listener = listener;
    job.slices = identity.slices;
    if (listener < 0 || bind(listener, found->ai_addr, found->ai_addrlen) != 0 ||
        listen(listener, MOST_WAITING) != 0 ||
        (errno = pthread_create(&thread, NULL, serve, NULL)) != 0) {
      error = error_new(PJRT_Error_Code_UNAVAILABLE,
                        "virtual TPU: slice 0 can't listen on MEGASCALE_COORDINATOR_ADDRESS=%s:%s: "
                        "%s",
                        address->host, address->port,
                        found == NULL ? "no such address" : strerror(errno));
      if (listener >= 0) close(listener);
    } else {
      pthread_detach(thread);
      served = 1;
    }
    if (found != NULL) freeaddrinfo(found);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

static int64_t milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// A connection to the coordinator, tried until `end`; -1 without one.
static int connect_by(const Address *address, int64_t end) {
  do {
    struct addrinfo *found = resolve(address);
    if (found != NULL) {
      const int joined = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      // Bounds connect() too: a host that never answers would hold it for minutes.
      const int64_t rest = end - milliseconds();
      const struct timeval most = {.tv_sec = rest / 1000, .tv_usec = rest % 1000 * 1000 + 1};
      setsockopt(joined, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
      const int failed = rest <= 0 || connect(joined, found->ai_addr, found->ai_addrlen);
      freeaddrinfo(found);
      if (failed == 0) return joined;
      close(joined);
    }
    usleep(RETRY_MS * 1000);
  } while (milliseconds() < end);
  return -1;
}

// The slices that have not come, as "1, 3".
static const char *absent(const char *seen, char *out, size_t size) {
  size_t used = 0;
  out[0] = '\0';
  for (int slice = 0; slice < identity.slices && used < size; ++slice) {
    if (seen[slice]) continue;
    const int more = snprintf(out + used, size - used, "%s%d", used > 0 ? ", " : "", slice);
    used += (size_t)more;
  }
  return out;
}

// Read until "go", an end of the coordinator, or `end`.
static PJRT_Error *wait_for_all(int joined, int64_t end, int seconds) {
  const int slice = identity.first_slice;
  char seen[MOST_SLICES] = {0}, text[512];
  int again = 0;
  FILE *lines = fdopen(joined, "r");
  if (lines == NULL) return error_new(PJRT_Error_Code_INTERNAL, "virtual TPU: %s", strerror(errno));
  setvbuf(lines, NULL, _IONBF, 0);
  PJRT_Error *error = NULL;
  for (;;) {
    const int64_t rest = end - milliseconds();
    struct pollfd polled = {.fd = joined, .events = POLLIN};
    if (rest <= 0 || poll(&polled, 1, (int)rest) == 0) {
      tell(joined, "leave", -1);
      error = again ? error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                                "virtual TPU: slice %d hung in a second discovery: the other "
                                "slices have come already and never come again (%d s); the client "
                                "was created without SKIP_MEGASCALE_PJRT_CLIENT=true",
                                slice, seconds)
                    : error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                                "virtual TPU: slice %d waited %d s in its discovery for slice %s "
                                "of %d",
                                slice, seconds, absent(seen, text, sizeof text), identity.slices);
      break;
    }
    char line[32];
    int number;
    if (fgets(line, sizeof line, lines) == NULL) {
      error = error_new(PJRT_Error_Code_UNAVAILABLE,
                        "virtual TPU: slice 0, the coordinator, died during the discovery of "
                        "slice %d",
                        slice);
      break;
    }
    if (strcmp(line, "go\n") == 0) break;
    if (sscanf(line, "again %d", &number) == 1) again = 1;
    if (sscanf(line, "came %d", &number) == 1 && number < MOST_SLICES) seen[number] = 1;
    if (sscanf(line, "lost %d", &number) == 1) {
      error = error_new(PJRT_Error_Code_UNAVAILABLE,
                        "virtual TPU: slice %d died during the discovery of slice %d", number,
                        slice);
      break;
    }
  }
  fclose(lines);
  return error;
}

PJRT_Error *megascale_discover(void) {
  const char *text = coordinator();
  if (text == NULL) return NULL;  // all slices are in this process
  if (identity.slices > MOST_SLICES) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: %d slices in processes of their own: expected %d at most",
                     identity.slices, MOST_SLICES);
  }
  const Address address = split(text);
  const char *deadline = getenv("VIRTUAL_TPU_DEADLINE");
  const int seconds = deadline != NULL && atoi(deadline) > 0 ? atoi(deadline) : 20;
  const int64_t end = milliseconds() + (int64_t)seconds * 1000;
  if (identity.first_slice == 0) {
    PJRT_Error *error = coordinate(&address);
    if (error != NULL) return error;
  }
  const int joined = connect_by(&address, end);
  if (joined < 0) {
    return error_new(PJRT_Error_Code_DEADLINE_EXCEEDED,
                     "virtual TPU: slice %d found no coordinator at "
                     "MEGASCALE_COORDINATOR_ADDRESS=%s in %d s: slice 0 has not started",
                     identity.first_slice, text, seconds);
  }
  tell(joined, "join", identity.first_slice);
  return wait_for_all(joined, end, seconds);
}
