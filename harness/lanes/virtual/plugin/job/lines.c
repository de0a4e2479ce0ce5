#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "job/job.h"

int lines_receive(Lines *lines) {
  if (lines->used == sizeof lines->text) return 0;  // a line that does not end
  char *free_from = lines->text + lines->used;
  const ssize_t size =
      recv(lines->socket, free_from, sizeof lines->text - lines->used, MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (size == 0 || memchr(free_from, '\0', (size_t)size) != NULL) return 0;
  lines->used += (size_t)size;
  return 1;
}

const char *lines_next(Lines *lines) {
  lines->used -= lines->taken;
  memmove(lines->text, lines->text + lines->taken, lines->used);
  lines->taken = 0;
  char *end = memchr(lines->text, '\n', lines->used);
  if (end == NULL) return NULL;
  *end = '\0';
  lines->taken = (size_t)(end - lines->text) + 1;
  return lines->text;
}

const char *line_after(const char *line, const char *word) {
  const size_t size = strlen(word);
  return strncmp(line, word, size) == 0 && line[size] == ' ' ? line + size + 1 : NULL;
}

void lines_send(int socket, const char *format, ...) {
  char line[MOST_LINE];
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  // Who does not read loses the connection, and poll says so; nobody waits for that.
  if (send(socket, line, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT) != size) {
    shutdown(socket, SHUT_RDWR);
  }
}
