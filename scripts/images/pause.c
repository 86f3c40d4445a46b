/* Holds a pod's namespaces open and reaps what is orphaned into it. Ends on SIGTERM and SIGINT. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
	(void)signal;
	_exit(0);
}

static void reap(int signal) {
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	if (sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGINT, &on_end, NULL) || sigaction(SIGCHLD, &on_child, NULL))
		return 1;
	for (;;)
		pause();
}
