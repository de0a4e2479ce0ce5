#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/job.h"

// A connection is a stranger's until it has shown the job's token. There is room for so many of
// them, the oldest of which makes way for a new one, and each has so much time.
enum {
  MOST_STRANGERS = 64,
  MOST_CONNECTIONS = 1024,
  STRANGER_MS = 2000,
  MOST_ACCEPTED = 64,  // in a row, before those who are connected are heard again
  RETRY_MS = 10
};

typedef struct {
  Lines lines;
  int slice;      // -1 until it has joined
  int64_t until;  // for a stranger: when it must have shown the token; then 0
} Connection;

static struct {
  char token[MOST_TOKEN + 1];
  int listener;
  int slices, came, complete;
  char seen[MOST_MEMBERS];
  Connection connections[MOST_CONNECTIONS];
  int count;
} job;

static void tell_all(const char *word, int slice) {
  for (int i = 0; i < job.count; ++i) {
    if (job.connections[i].slice >= 0) {
      lines_send(job.connections[i].lines.socket, "%s %d\n", word, slice);
    }
  }
}

// Let all members go. The process that this thread is part of comes last: it may end as soon as it
// hears.
static void let_go(void) {
  for (int is_own = 0; is_own <= 1; ++is_own) {
    for (int i = 0; i < job.count; ++i) {
      const Connection *member = &job.connections[i];
      if (member->slice >= 0 && (member->slice == 0) == is_own) {
        lines_send(member->lines.socket, "go %d\n", job.slices);
      }
    }
  }
}

// Compare with the job's token, which takes as long for one that is nearly right as for any other.
static int is_token(const char *given) {
  char padded[sizeof job.token] = {0};
  const size_t size = strlen(given);
  if (size >= sizeof padded) return 0;
  memcpy(padded, given, size);
  volatile unsigned char differs = 0;
  for (size_t i = 0; i < sizeof padded; ++i) {
    differs |= (unsigned char)(padded[i] ^ job.token[i]);
  }
  return differs == 0;
}

// Let a member join. A client that joins a second time is never answered: the others have already
// joined.
static void join(Connection *joiner, int slice) {
  const int socket = joiner->lines.socket;
  if (job.seen[slice]) {
    lines_send(socket, "again %d\n", slice);
    return;
  }
  job.seen[slice] = 1;
  for (int other = 0; other < job.slices; ++other) {
    if (job.seen[other] && other != slice) lines_send(socket, "came %d\n", other);
  }
  joiner->slice = slice;
  tell_all("came", slice);
  if (++job.came == job.slices) {
    job.complete = 1;
    let_go();
  }
}

// Do what a line asks for. Returns 0 for one that ends the connection.
static int understand(Connection *from, const char *line) {
  const char *rest = line_after(line, "token");
  if (from->until != 0) {
    if (rest == NULL) return 0;
    if (!is_token(rest)) {
      lines_send(from->lines.socket, "refused\n");
      return 0;
    }
    from->until = 0;
    lines_send(from->lines.socket, "welcome\n");
    return 1;
  }
  int slice;
  if (strcmp(line, "leave") == 0) {
    from->slice = -1;
    return 1;
  }
  if (from->slice >= 0 || !number_whole(line_after(line, "join"), 0, job.slices - 1, &slice)) {
    return 0;
  }
  join(from, slice);
  return 1;
}

static int hear(Connection *from) {
  if (!lines_receive(&from->lines)) return 0;
  for (const char *line; (line = lines_next(&from->lines)) != NULL;) {
    if (!understand(from, line)) return 0;
  }
  return 1;
}

static void drop(int index) {
  const Connection gone = job.connections[index];
  close(gone.lines.socket);
  job.connections[index] = job.connections[--job.count];
  if (gone.slice >= 0 && !job.complete) tell_all("lost", gone.slice);
}

// Return the stranger whose time is over first, or -1, and how many there are.
static int oldest_stranger(int *strangers) {
  int oldest = -1;
  *strangers = 0;
  for (int i = 0; i < job.count; ++i) {
    const int64_t until = job.connections[i].until;
    if (until == 0) continue;
    ++*strangers;
    if (oldest < 0 || until < job.connections[oldest].until) oldest = i;
  }
  return oldest;
}

static void accept_some(void) {
  for (int accepted = 0; accepted < MOST_ACCEPTED; ++accepted) {
    const int socket = accept4(job.listener, NULL, NULL, SOCK_CLOEXEC);
    const int wrong = errno;
    int strangers;
    const int oldest = oldest_stranger(&strangers);
    if (socket < 0) {
      if (wrong == EAGAIN || wrong == EWOULDBLOCK) return;
      if ((wrong == EMFILE || wrong == ENFILE) && oldest >= 0) {
        drop(oldest);
        continue;
      }
      // Without descriptors the listener stays readable.
      usleep(RETRY_MS * 1000);
      return;
    }
    if (strangers == MOST_STRANGERS) drop(oldest);
    if (job.count == MOST_CONNECTIONS) {
      close(socket);
      continue;
    }
    // Short lines, which nobody answers: the kernel would keep each back for some milliseconds.
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    job.connections[job.count++] = (Connection){
        .lines = {.socket = socket}, .slice = -1, .until = milliseconds() + STRANGER_MS};
    if (!hear(&job.connections[job.count - 1])) drop(job.count - 1);  // its token may be here
  }
}

static void drop_late_strangers(void) {
  int strangers, oldest;
  while ((oldest = oldest_stranger(&strangers)) >= 0 &&
         job.connections[oldest].until <= milliseconds()) {
    drop(oldest);
  }
}

static int until_next_stranger_is_late(void) {
  int strangers;
  const int oldest = oldest_stranger(&strangers);
  if (oldest < 0) return -1;
  const int64_t rest = job.connections[oldest].until - milliseconds();
  return rest > 0 ? (int)rest : 0;
}

static void *serve(void *unused) {
  (void)unused;
  static struct pollfd polled[MOST_CONNECTIONS + 1];
  for (;;) {
    const int count = job.count;
    polled[0] = (struct pollfd){.fd = job.listener, .events = POLLIN};
    for (int i = 0; i < count; ++i) {
      polled[i + 1] = (struct pollfd){.fd = job.connections[i].lines.socket, .events = POLLIN};
    }
    if (poll(polled, (nfds_t)count + 1, until_next_stranger_is_late()) < 0) continue;
    // Downwards: what is dropped makes way for the last one, which has been heard.
    for (int i = count - 1; i >= 0; --i) {
      if (polled[i + 1].revents != 0 && !hear(&job.connections[i])) drop(i);
    }
    drop_late_strangers();
    if (polled[0].revents != 0) accept_some();
  }
  return NULL;
}

int coordinator_serve(const struct addrinfo *address, const char *token, int slices) {
  const int on = 1;
  const int listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return errno;
  job.listener = listener;
  job.slices = slices;
  snprintf(job.token, sizeof job.token, "%s", token);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  pthread_t thread;
  int wrong = bind(listener, address->ai_addr, address->ai_addrlen) != 0 ||
                      listen(listener, MOST_CONNECTIONS) != 0
                  ? errno
                  : pthread_create(&thread, NULL, serve, NULL);
  if (wrong != 0) {
    close(listener);
    return wrong;
  }
  pthread_detach(thread);
  return 0;
}
