#define _GNU_SOURCE
#include "job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// The ranks of a job meet in a process of its own, the job's executor: `python -m
// harness.lanes.virtual.executor`. Whoever needs it first listens for it and starts it; it ends
// when the last rank has left. Its address is a name, not a file, so nothing stays behind.
//
// A message is one packet: a line, and text after it where it has some. harness/lanes/virtual/
// executor/server.py has the other side.

#define JOB_VARIABLE "XLA_HARNESS_JOB"
#define TOKEN_VARIABLE "XLA_HARNESS_JOB_TOKEN"
#define RANKS_VARIABLE "XLA_HARNESS_JOB_RANKS"
#define PYTHON_VARIABLE "VIRTUAL_TPU_PYTHON"

enum { MOST_MESSAGE = 1 << 17, MOST_NAME = 64, BACKLOG = 512, TRIES = 5, MOST_REFUSALS = 1000 };

extern char **environ;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = -1;
static pid_t joined;  // by which process: a fork of it is no rank
static char *failure;
static JobReader reader;
static int complete;  // all ranks have come
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

char *job_failure(void) {
  pthread_mutex_lock(&lock);
  char *copy = failure == NULL ? NULL : strdup(failure);
  pthread_mutex_unlock(&lock);
  return copy;
}

void job_fail(const char *why) {
  pthread_mutex_lock(&lock);
  if (failure == NULL) failure = strdup(why);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static socklen_t address_of(const char *name, struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  // A first byte of 0 makes it a name in the abstract namespace.
  const int size =
      snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "xla-harness-%s", name);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
}

// Copy this process's environment, to be freed, and have large arrays lie in large pages: XLA takes
// new memory for each result, and of small pages half of the time goes into that.
static char **executor_environment(void) {
  static char TUNABLES[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  size_t count = 0;
  while (environ[count] != NULL) ++count;
  char **copy = allocate(count + 2, sizeof *copy, "the executor's environment");
  memcpy(copy, environ, count * sizeof *copy);
  if (getenv("GLIBC_TUNABLES") == NULL) copy[count] = TUNABLES;
  return copy;
}

// Start the executor with the socket that it accepts on; 0, or an errno.
static int start_executor(int listening) {
  const char *python = getenv(PYTHON_VARIABLE);
  if (python == NULL || *python == '\0') return ENOENT;
  char number[16], starter[16];
  snprintf(number, sizeof number, "%d", listening);
  snprintf(starter, sizeof starter, "%d", (int)getpid());
  // -P: the folder that the job runs in is not searched for modules.
  char *const arguments[] = {(char *)python, "-P",    "-m", "harness.lanes.virtual.executor",
                             number,         starter, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Onto itself: that clears close-on-exec in the child alone.
  posix_spawn_file_actions_adddup2(&actions, listening, listening);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  // Ctrl-C is for the ranks; the executor ends with them.
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t process;
  char **environment = executor_environment();
  const int wrong = posix_spawn(&process, python, &actions, &attributes, arguments, environment);
  free(environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return wrong;
}

// Become the one that starts the executor, if nobody has the address; 0, or an errno.
static int start_if_missing(const struct sockaddr_un *address, socklen_t size) {
  const int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listening < 0) return errno;
  int wrong = 0;
  if (bind(listening, (const struct sockaddr *)address, size) == 0) {
    wrong = listen(listening, BACKLOG) != 0 ? errno : start_executor(listening);
  }
  close(listening);
  return wrong;
}

// Return whether the other side was started by this user: anybody may take a name that nobody has.
static int is_of_this_user(int made) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(made, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

// Connect to the job's executor, which is started if there is none; -1, and errno says why.
static int connect_to(const char *name) {
  struct sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  // Refused between another rank's bind and its listen, and while an executor ends.
  for (int tries = 0;; ++tries) {
    int wrong = start_if_missing(&address, size);
    const int made = wrong != 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, (struct sockaddr *)&address, size) == 0) {
      if (is_of_this_user(made)) return made;
      wrong = EPERM;
    }
    if (wrong == 0) wrong = errno;
    if (made >= 0) close(made);
    if (wrong != ECONNREFUSED || tries == MOST_REFUSALS) {
      errno = wrong;
      return -1;
    }
    usleep(1000);
  }
}

int packet_send(int socket, int descriptor, const char *message, size_t size) {
  struct iovec part = {.iov_base = (void *)message,
                       .iov_len = size < MOST_MESSAGE ? size : MOST_MESSAGE};
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
  if (descriptor >= 0) {
    packet.msg_control = control.room;
    packet.msg_controllen = sizeof control.room;
    struct cmsghdr *head = CMSG_FIRSTHDR(&packet);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &packet, MSG_NOSIGNAL) >= 0;
}

int job_send(int descriptor, const char *format, ...) {
  char *message;
  va_list arguments;
  va_start(arguments, format);
  const int size = vasprintf(&message, format, arguments);
  va_end(arguments);
  if (size < 0) abort();
  const int sent = packet_send(connection, descriptor, message, (size_t)size);
  free(message);
  return sent;
}

// Receive a message, with an end put to it, and the descriptor that came with it, or -1; NULL when
// the executor has closed the connection.
static char *receive(char *room, int *descriptor) {
  struct iovec part = {.iov_base = room, .iov_len = MOST_MESSAGE};
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr packet;
  ssize_t size;
  do {
    packet = (struct msghdr){.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    size = recvmsg(connection, &packet, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return NULL;
  const struct cmsghdr *head = CMSG_FIRSTHDR(&packet);
  *descriptor = -1;
  if (head != NULL) memcpy(descriptor, CMSG_DATA(head), sizeof *descriptor);
  room[size] = '\0';
  return room;
}

// Note that the job can't go on. One rank's error is the whole report, so that a reader finds it
// once; those of the others have its first line, which names the culprit. No rank has the number
// -1: then a command prints the report.
static void fail_of(const char *reporter, const char *report) {
  event_write("failed", NULL, report, "%s", "");
  if (atoi(reporter) == identity.process) {
    job_fail(report);
    return;
  }
  const char *after = atoi(reporter) < 0 ? "" : "\nthe whole report is in the error of rank ";
  char *summary;
  if (asprintf(&summary, "%.*s%s%s", (int)strcspn(report, "\n"), report, after,
               *after == '\0' ? "" : reporter) < 0) {
    abort();
  }
  job_fail(summary);
  free(summary);
}

static void *read_messages(void *room) {
  char *line;
  int descriptor;
  while ((line = receive(room, &descriptor)) != NULL) {
    char *end = strchr(line, '\n'), *text = "";
    if (end != NULL) {
      *end = '\0';
      text = end + 1;
    }
    const char *reporter = line_after(line, "failed");
    if (reporter != NULL) {
      fail_of(reporter, text);
      reader("failed", "", -1);
    } else if (strcmp(line, "complete") == 0) {
      pthread_mutex_lock(&lock);
      complete = 1;
      pthread_cond_broadcast(&changed);
      pthread_mutex_unlock(&lock);
    }
    if (reporter == NULL) reader(line, text, descriptor);
  }
  free(room);
  job_fail(in_own_words("the process that runs the job's programs has ended"));
  reader("failed", "", -1);
  return NULL;
}

static char *own_devices(void) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) abort();
  const char *between = "";
  for (int id = 0; id < identity_total(); ++id) {
    if (!identity_is_own(id)) continue;
    fprintf(stream, "%s%d", between, id);
    between = ",";
  }
  fclose(stream);
  return text;
}

// Say who this is: what the executor answers, or NULL if it has ended.
static const char *introduce(char *room) {
  const char *token = getenv(TOKEN_VARIABLE);
  char *devices = own_devices();
  job_send(-1, "hello %s %d %d %s %s", token == NULL || *token == '\0' ? "-" : token,
           identity.process, identity_total(), devices, place_devices());
  free(devices);
  int none;
  return receive(room, &none);
}

static PJRT_Error *join(void) {
  const char *name = getenv(JOB_VARIABLE), *answer = NULL;
  if (name == NULL || *name == '\0' || strlen(name) > MOST_NAME) {
    return error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                     "a program over devices of several processes needs a job: "
                     "XLA_HARNESS_JOB is %s. run_ranks(...), `pytest --lane` and "
                     "`xla-harness run` set it",
                     name == NULL || *name == '\0' ? "not set" : "too long");
  }
  char *room = allocate(MOST_MESSAGE + 1, 1, "the job's messages");
  // An executor that its last rank has just left still has the address, and then ends.
  for (int tries = 0; tries < TRIES && answer == NULL; ++tries) {
    if (connection >= 0) close(connection);
    connection = connect_to(name);
    if (connection < 0) break;
    answer = introduce(room);
  }
  if (answer != NULL && strncmp(answer, "welcome", strlen("welcome")) == 0) {
    joined = getpid();
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_messages, room) == 0) {
      pthread_detach(thread);
      return NULL;
    }
    answer = "refused there can be no more threads";
  }
  const char *why = connection < 0 ? strerror(errno) : "the process that runs its programs ended";
  if (answer != NULL && (why = line_after(answer, "refused")) == NULL) why = answer;
  PJRT_Error *error = error_new(PJRT_Error_Code_UNAVAILABLE, "process %d can't join its job: %s",
                                identity.process, why);
  free(room);
  if (connection >= 0) close(connection);
  connection = -1;
  return error;
}

int job_is_here(void) { return connection >= 0 && joined == getpid(); }

void job_listen(JobReader function) { reader = function; }

PJRT_Error *job_join(void) {
  static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&joining);
  PJRT_Error *error = NULL;
  if (connection < 0) {
    error = join();
  } else if (joined != getpid()) {
    error = error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                      "process %d was forked after process %d had joined the job: "
                      "fork before the first client is created",
                      (int)getpid(), (int)joined);
  }
  pthread_mutex_unlock(&joining);
  return error;
}

int job_is_given(void) {
  const char *name = getenv(JOB_VARIABLE);
  return name != NULL && *name != '\0';
}

PJRT_Error *job_error(void) {
  char *why = job_failure();
  PJRT_Error *error = why == NULL ? NULL : error_again(PJRT_Error_Code_ABORTED, "%s", why);
  free(why);
  return error;
}

int job_is_local(void) {
  const char *ranks = getenv(RANKS_VARIABLE);
  int count;
  return job_is_given() && ranks != NULL &&
         number_whole(ranks, identity.processes, identity.processes, &count);
}

JobState job_state(void) {
  if (!job_is_here()) return JOB_NONE;
  pthread_mutex_lock(&lock);
  const JobState state = failure != NULL ? JOB_FAILED : complete ? JOB_COMPLETE : JOB_INCOMPLETE;
  pthread_mutex_unlock(&lock);
  return state;
}

PJRT_Error *job_await(void) {
  pthread_mutex_lock(&lock);
  while (!complete && failure == NULL) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return job_error();
}
