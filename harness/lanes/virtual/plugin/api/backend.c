#define _GNU_SOURCE  // dladdr

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/api.h"

const PJRT_Api *backend;
static char missing[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

PJRT_Error *backend_missing(void) {
  return error_new(PJRT_Error_Code_FAILED_PRECONDITION, "%s", missing);
}

const PJRT_Api *api_of(const char *name, const char *path, char *wrong, size_t size) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(wrong, size, "%s can't be loaded: %s", name, dlerror());
    return NULL;
  }
  const PJRT_Api *(*get)(void);
  *(void **)&get = dlsym(library, "GetPjrtApi");
  const PJRT_Api *api = get == NULL ? NULL : get();
  if (api == NULL) {
    snprintf(wrong, size, "%s=%s %s", name, path,
             get == NULL ? "exports no GetPjrtApi" : "has a GetPjrtApi that returns NULL");
  }
  return api;
}

int is_own_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  Dl_info info, own;
  const void *get = library == NULL ? NULL : dlsym(library, "GetPjrtApi");
  return get != NULL && dladdr(get, &info) != 0 && dladdr(missing, &own) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

// Load the backend. That takes longer than all else here, so a process that forks many does it
// first.
static const PJRT_Api *load(const char *path) {
  if (path == NULL || *path == '\0') {
    snprintf(missing, sizeof missing,
             "VIRTUAL_TPU_BACKEND is not set: expected the path of xla_cpu_pjrt.so");
    return NULL;
  }
  const PJRT_Api *api = api_of("VIRTUAL_TPU_BACKEND", path, missing, sizeof missing);
  if (api == NULL) return NULL;
  const PJRT_Api_Version *version = &api->pjrt_api_version;
  if (version->major_version != PJRT_API_MAJOR || version->minor_version != PJRT_API_MINOR) {
    snprintf(missing, sizeof missing,
             "VIRTUAL_TPU_BACKEND=%s is PJRT %d.%d; this plugin was compiled for %d.%d", path,
             version->major_version, version->minor_version, PJRT_API_MAJOR, PJRT_API_MINOR);
    return NULL;
  }
  return api;
}

// Load the backend ahead of its first use; 0, or -1 when it can't be.
VIRTUAL_TPU_EXPORT int virtual_tpu_preload(const char *path) {
  pthread_mutex_lock(&lock);
  if (backend == NULL) backend = load(path);
  pthread_mutex_unlock(&lock);
  return backend == NULL ? -1 : 0;
}

VIRTUAL_TPU_EXPORT const char *virtual_tpu_why_missing(void) { return missing; }

void backend_load(void) { virtual_tpu_preload(getenv("VIRTUAL_TPU_BACKEND")); }

void backend_withhold(const char *why) {
  pthread_mutex_lock(&lock);
  backend = NULL;
  snprintf(missing, sizeof missing, "%s", why);
  pthread_mutex_unlock(&lock);
}
