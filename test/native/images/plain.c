/* A program that does not use CUDA, like the tools of any image: allocates, runs threads and a child, and looks names
 * up. Its output must not depend on what is preloaded. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *count(void *number) {
    static _Thread_local int own;
    for (int i = 0; i < 1000; i++) own += *(int *)number;
    return (void *)(long)own;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    int numbers[4] = {1, 2, 3, 4}, status;
    long sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, count, &numbers[i]);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    char *text = malloc(100000);
    memset(text, 'a', 99999);
    text[99999] = 0;
    printf("threads %ld, heap %zu\n", sum, strlen(text));
    free(text);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(7);
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
#ifdef LOOKS_UP
    size_t (*length)(const char *) = (size_t (*)(const char *))dlsym(RTLD_DEFAULT, "strlen");
    printf("looked up %zu\n", length("four"));
    printf("absent %p %p\n", dlsym(RTLD_DEFAULT, "cuNoSuchThing"), dlsym(RTLD_DEFAULT, "no_such_thing"));
    void *itself = dlopen(NULL, RTLD_NOW);
    printf("itself %d\n", itself != NULL && dlsym(itself, "puts") == dlsym(RTLD_DEFAULT, "puts"));
#endif
    return argc > 1 ? atoi(argv[1]) : 0;
}
