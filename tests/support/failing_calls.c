/* Preloaded into a process and all that it starts, it fails some of their calls to file systems.

   FAILING_CALLS names a file that they share: how many calls there were, the first that fails, the
   last, their errno, and then the path of the first. With FAILING_BELOW, folders with colons
   between them, each call counts that reads, writes, syncs, makes or moves a file in one of these.
   Otherwise those count that a full disk refuses: they make a file or a folder, write to a file, or
   move one. Files without a name, devices and pipes need no file system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct {
  atomic_long calls;
  long first, last, error;
  char path[PATH_MAX];
} Shared;

static Shared *shared;
static const char *below;

__attribute__((constructor)) static void find_shared(void) {
  const char *path = getenv("FAILING_CALLS");
  below = getenv("FAILING_BELOW");
  int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
  if (file < 0) return;
  void *at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  syscall(SYS_close, file);
  if (at != MAP_FAILED) shared = at;
}

static bool counts(const char *path) {
  if (!below) {
    bool device = !strncmp(path, "/dev/", 5) && strncmp(path, "/dev/shm/", 9);
    return !device && strncmp(path, "/proc/", 6) && strncmp(path, "/sys/", 5);
  }
  for (const char *at = below; *at;) {
    size_t size = strcspn(at, ":");
    if (!strncmp(path, at, size) && (path[size] == '/' || !path[size])) return true;
    at += size + (at[size] == ':');
  }
  return false;
}

static bool fails(const char *path) {
  if (!counts(path)) return false;
  long number = atomic_fetch_add(&shared->calls, 1) + 1;
  if (!shared->first || number < shared->first || number > shared->last) return false;
  if (number == shared->first) snprintf(shared->path, sizeof shared->path, "%s", path);
  errno = (int)shared->error;
  return true;
}

static bool fails_to(int file) {
  int before = errno;
  struct stat status;
  char link[40], path[PATH_MAX] = "";
  bool named = shared && !fstat(file, &status) &&
               (S_ISDIR(status.st_mode) || (S_ISREG(status.st_mode) && status.st_nlink));
  if (named) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlink, link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
  }
  errno = before;
  return named && fails(path);
}

static bool fails_at(int folder, const char *path) {
  char link[64] = "/proc/self/cwd", whole[2 * PATH_MAX + 2];
  if (!shared || !path) return false;
  if (path[0] == '/' || !below) return fails(path);
  if (folder != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t size = syscall(SYS_readlink, link, whole, PATH_MAX);
  if (size < 0) return false;
  snprintf(whole + size, sizeof whole - (size_t)size, "/%s", path);
  return fails(whole);
}

static bool makes(int folder, const char *path) {
  int before = errno;
  struct stat status;
  bool new = shared && path && (below || fstatat(folder, path, &status, 0));
  errno = before;
  return new && fails_at(folder, path);
}

#define REAL(name)               \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CALL(result, name, arguments, failed, ...) \
  result name arguments {                          \
    REAL(name);                                    \
    return failed ? -1 : real(__VA_ARGS__);        \
  }
#define OPEN(name, arguments, folder, ...)                                  \
  int name arguments {                                                      \
    REAL(name);                                                             \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    bool failed = (below || flags & O_CREAT) && makes(folder, path);        \
    return failed ? -1 : real(__VA_ARGS__, mode);                           \
  }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(openat, (int folder, const char *path, int flags, ...), folder, folder, path, flags)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, folder, path, flags)
CALL(ssize_t, read, (int fd, void *to, size_t n), below &&fails_to(fd), fd, to, n)
CALL(ssize_t, pread, (int fd, void *to, size_t n, off_t at), below &&fails_to(fd), fd, to, n, at)
CALL(ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), below &&fails_to(fd), fd, to, n,
     at)
CALL(int, fsync, (int fd), below &&fails_to(fd), fd)
CALL(int, fdatasync, (int fd), below &&fails_to(fd), fd)
CALL(ssize_t, write, (int fd, const void *from, size_t n), fails_to(fd), fd, from, n)
CALL(ssize_t, writev, (int fd, const struct iovec *from, int n), fails_to(fd), fd, from, n)
CALL(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), fails_to(fd), fd, from, n, at)
CALL(ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), fails_to(fd), fd, from, n,
     at)
CALL(int, mkdir, (const char *path, mode_t mode), makes(AT_FDCWD, path), path, mode)
CALL(int, rename, (const char *from, const char *to), fails_at(AT_FDCWD, to), from, to)
CALL(int, renameat, (int one, const char *from, int two, const char *to), fails_at(two, to), one,
     from, two, to)
CALL(int, link, (const char *from, const char *to), fails_at(AT_FDCWD, to), from, to)
CALL(int, linkat, (int one, const char *from, int two, const char *to, int flags),
     fails_at(two, to), one, from, two, to, flags)
