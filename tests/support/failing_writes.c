/* Preloaded, it fails one call of all processes together: the Nth that a file system refuses when
   it is full. A call counts if it makes a file or a folder, writes to a file, or moves one.
   Files without a name, devices and pipes need no file system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct {
  atomic_int calls; /* so far */
  int nth;          /* fails; 0 for none */
  int last;         /* fails still, as all between */
  char path[4096];  /* of the first that failed */
} Shared;

static Shared *shared;

__attribute__((constructor)) static void find_shared(void) {
  const char *path = getenv("FAILING_WRITES");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) shared = at;
}

static bool is_file(const char *path) {
  bool device = !strncmp(path, "/dev/", 5) && strncmp(path, "/dev/shm/", 9);
  return !device && strncmp(path, "/proc/", 6) && strncmp(path, "/sys/", 5);
}

static bool fails(const char *path) {
  if (!shared || !path || !is_file(path)) return false;
  int number = atomic_fetch_add(&shared->calls, 1) + 1;
  if (!shared->nth || number < shared->nth || number > shared->last) return false;
  if (number == shared->nth) snprintf(shared->path, sizeof shared->path, "%s", path);
  errno = ENOSPC;
  return true;
}

static bool fails_to(int file) {
  int before = errno;
  struct stat status;
  char link[40], path[4096] = "";
  bool named = shared && !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_nlink;
  if (named) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
  }
  errno = before;
  return named && fails(path);
}

static bool makes(int folder, const char *path) {
  int before = errno;
  struct stat status;
  bool new = path && fstatat(folder, path, &status, 0);
  errno = before;
  return new && fails(path);
}

#define CALL(result, name, arguments, failed, ...)                  \
  result name arguments {                                           \
    static result(*real) arguments;                                 \
    if (!real) real = (result(*) arguments)dlsym(RTLD_NEXT, #name); \
    return failed ? -1 : real(__VA_ARGS__);                         \
  }
#define OPEN(name, arguments, folder, ...)                                          \
  int name arguments {                                                              \
    static int(*real) arguments;                                                    \
    if (!real) real = (int(*) arguments)dlsym(RTLD_NEXT, #name);                    \
    va_list rest;                                                                   \
    va_start(rest, flags);                                                          \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;         \
    va_end(rest);                                                                   \
    return (flags & O_CREAT) && makes(folder, path) ? -1 : real(__VA_ARGS__, mode); \
  }

CALL(ssize_t, write, (int file, const void *data, size_t size), fails_to(file), file, data, size)
CALL(ssize_t, writev, (int file, const struct iovec *data, int count), fails_to(file), file, data,
     count)
CALL(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), fails_to(file), file,
     data, size, at)
CALL(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), fails_to(file), file,
     data, size, at)
CALL(int, mkdir, (const char *path, mode_t mode), makes(AT_FDCWD, path), path, mode)
CALL(int, rename, (const char *old, const char *new), fails(new), old, new)
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(openat, (int folder, const char *path, int flags, ...), folder, folder, path, flags)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, folder, path, flags)
