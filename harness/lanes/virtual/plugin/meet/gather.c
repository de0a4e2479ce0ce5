#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "meet/meet.h"

// Threads of one process may each run a program on one device of it, as replicas of torch_xla do.
// If all of them bring one executable, XLA's own runtime lets them meet; if they bring several, as
// with pin_layout=True, or some stay away, the job's executor does. Which of both is decided once
// for all of them, so the first ones wait for the others, as they would in the collective.

enum { PATIENCE_SECONDS = 2 };
static const double IDLE_SECONDS = 0.01;

typedef enum { OPEN, HERE, IN_EXECUTOR } Decision;

typedef struct Gathering {
  struct Gathering *next;
  const PJRT_LoadedExecutable *executable;  // the first one's
  size_t expected, came, left;
  Decision decision;
  char *has;  // for each device, whether it has come
  PJRT_Device *devices[];
} Gathering;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t decided = PTHREAD_COND_INITIALIZER;
static Gathering *gatherings;  // in the order in which their first device came

static size_t index_of(const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                       const PJRT_Device *device) {
  size_t index = 0;
  while (index < all->num_addressable_devices && all->addressable_devices[index] != device) ++index;
  return index;
}

static int is_of(const Gathering *gathering,
                 const PJRT_LoadedExecutable_AddressableDevices_Args *all) {
  const size_t count = all->num_addressable_devices;
  return gathering->expected == count && memcmp(gathering->devices, all->addressable_devices,
                                                count * sizeof gathering->devices[0]) == 0;
}

// Find the gathering of a program, or begin one: the n-th of one device meets the n-th of the
// others.
static Gathering *find(const PJRT_LoadedExecutable_AddressableDevices_Args *all, size_t index) {
  Gathering **link = &gatherings;
  while (*link != NULL && (!is_of(*link, all) || (*link)->has[index])) link = &(*link)->next;
  if (*link != NULL) return *link;
  const size_t count = all->num_addressable_devices;
  Gathering *gathering =
      allocate(1, sizeof *gathering + count * sizeof gathering->devices[0], "threads that meet");
  gathering->has = allocate(count, 1, "threads that meet");
  memcpy(gathering->devices, all->addressable_devices, count * sizeof gathering->devices[0]);
  gathering->executable = all->executable;
  gathering->expected = count;
  return *link = gathering;
}

static void drop(Gathering *gone) {
  Gathering **link = &gatherings;
  while (*link != gone) link = &(*link)->next;
  *link = gone->next;
  free(gone->has);
  free(gone);
}

static void decide(Gathering *gathering, Decision decision) {
  if (gathering->decision == OPEN) gathering->decision = decision;
  pthread_cond_broadcast(&decided);
}

static double cpu_seconds(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

// Wait for the other threads: as long as the process does anything, they may still be on their way.
static void wait_for_others(Gathering *gathering) {
  while (gathering->decision == OPEN) {
    const double before = cpu_seconds();
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_SECONDS;
    int late = 0;
    while (gathering->decision == OPEN && !late) {
      late = pthread_cond_timedwait(&decided, &lock, &end) == ETIMEDOUT;
    }
    if (late && cpu_seconds() - before < IDLE_SECONDS) decide(gathering, IN_EXECUTOR);
  }
}

int gather_here(const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                const PJRT_Device *device) {
  const size_t index = index_of(all, device);
  if (index == all->num_addressable_devices) return 0;
  pthread_mutex_lock(&lock);
  Gathering *gathering = find(all, index);
  gathering->has[index] = 1;
  ++gathering->came;
  if (gathering->executable != all->executable) decide(gathering, IN_EXECUTOR);
  if (gathering->came == gathering->expected) decide(gathering, HERE);
  wait_for_others(gathering);
  const int here = gathering->decision == HERE;
  if (++gathering->left == gathering->expected) drop(gathering);
  pthread_mutex_unlock(&lock);
  return here;
}

void gather_forget(void) {
  pthread_mutex_lock(&lock);
  for (Gathering *gathering = gatherings, *next; gathering != NULL; gathering = next) {
    next = gathering->next;
    if (gathering->came == gathering->left) drop(gathering);
  }
  pthread_mutex_unlock(&lock);
}
