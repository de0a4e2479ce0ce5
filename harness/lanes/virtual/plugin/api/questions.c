#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "api/python.h"

// Questions to the Python half. A thread that executes a program must not wait for the GIL: on
// hardware it never would, and whoever holds it may be waiting for that execution, as torch_xla
// does when the process ends. So only a thread of the plugin's own takes the GIL, and the others
// wait a little for its answer. Once it was late nobody waits, until it has the GIL again.

typedef struct Question {
  struct Question *next;
  const char *method;
  unsigned long thread;  // of the one who asks
  int is_answered, is_abandoned;
  char *answer;
} Question;

// How long an answer may take, in milliseconds. A busy machine takes a tenth of a second to hand
// the GIL over. What is asked for once may take longer than what is asked at each execution.
enum { SITE = 200, STACK = 2000, STABLEHLO = 10000 };

static struct {
  pthread_mutex_t lock;
  pthread_cond_t added, answered;
  int has_thread, is_late;
  Question *first, **last;
} questions;

static void reset(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&questions.lock, NULL);
  pthread_cond_init(&questions.added, NULL);
  pthread_cond_init(&questions.answered, &attributes);
  pthread_condattr_destroy(&attributes);
  questions.has_thread = questions.is_late = 0;
  questions.first = NULL;
  questions.last = &questions.first;
}

// Start without a thread, as a fork does: it has neither its parent's nor those who wait for it.
static void prepare(void) {
  reset();
  pthread_atfork(NULL, NULL, reset);
}

static Question *take_first(void) {
  Question *question = questions.first;
  questions.first = question->next;
  if (questions.first == NULL) questions.last = &questions.first;
  return question;
}

static void drop(Question *question) {
  free(question->answer);
  free(question);
}

// Answer all questions there are, with the GIL and the lock, which is not held meanwhile: Python
// lets other threads have the GIL, and those may ask something.
static void answer_all(void) {
  while (questions.first != NULL) {
    Question *question = take_first();
    pthread_mutex_unlock(&questions.lock);
    char *answer = python_call(question->method, question->thread);
    pthread_mutex_lock(&questions.lock);
    question->answer = answer;
    question->is_answered = 1;
    questions.is_late = 0;
    if (question->is_abandoned) drop(question);
    pthread_cond_broadcast(&questions.answered);
  }
  questions.is_late = 0;
}

// Answer questions until the interpreter ends: then Python ends each thread that asks for the GIL.
static void *answer_questions(void *unused) {
  pthread_mutex_lock(&questions.lock);
  for (;;) {
    while (questions.first == NULL) pthread_cond_wait(&questions.added, &questions.lock);
    pthread_mutex_unlock(&questions.lock);
    if (!python_runs()) return unused;
    const int state = python_enter();
    pthread_mutex_lock(&questions.lock);
    answer_all();
    pthread_mutex_unlock(&questions.lock);
    python_leave(state);
    pthread_mutex_lock(&questions.lock);
  }
}

static int has_thread(void) {
  pthread_t thread;
  if (!questions.has_thread && pthread_create(&thread, NULL, answer_questions, NULL) == 0) {
    pthread_detach(thread);
    questions.has_thread = 1;
  }
  return questions.has_thread;
}

static struct timespec in_milliseconds(int milliseconds) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += milliseconds / 1000;
  end.tv_nsec += milliseconds % 1000 * 1000000L;
  if (end.tv_nsec >= 1000000000L) {
    end.tv_nsec -= 1000000000L;
    ++end.tv_sec;
  }
  return end;
}

// Wait for an answer, which is NULL when there is none in time. The lock is held.
static char *await_answer(Question *question, int milliseconds) {
  const struct timespec end = in_milliseconds(milliseconds);
  int wrong = 0;
  while (!question->is_answered && wrong != ETIMEDOUT) {
    wrong = pthread_cond_timedwait(&questions.answered, &questions.lock, &end);
  }
  if (!question->is_answered) {
    questions.is_late = question->is_abandoned = 1;
    return NULL;
  }
  char *answer = question->answer;
  free(question);
  return answer;
}

static char *ask_thread(const char *method, unsigned long thread, int milliseconds) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare);
  char *answer = NULL;
  pthread_mutex_lock(&questions.lock);
  if (!questions.is_late && has_thread()) {
    Question *question = allocate(1, sizeof *question, "a question to Python");
    *question = (Question){.method = method, .thread = thread};
    *questions.last = question;
    questions.last = &question->next;
    pthread_cond_signal(&questions.added);
    answer = await_answer(question, milliseconds);
  }
  pthread_mutex_unlock(&questions.lock);
  return answer;
}

static char *ask(const char *method, int milliseconds) {
  if (!python_runs()) return NULL;
  const unsigned long thread = (unsigned long)pthread_self();  // Python's number of it, too
  if (python_is_held()) return python_call(method, thread);
  return ask_thread(method, thread, milliseconds);
}

char *python_site(void) {
  char *site = python_runs() ? frames_site() : NULL;
  return site != NULL ? site : ask("site", SITE);
}

char *python_stack(void) { return ask("stack", STACK); }

char *python_stacks(void) { return ask("stacks", STACK); }

char *python_stablehlo(void) { return ask("stablehlo", STABLEHLO); }
