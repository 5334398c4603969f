/* How the simulated node is reached: its folder and socket, the event loop, the answers to requests, and the commands
 * that query or change a running node. */
#pragma once

#include "../state/node.h"

/* node_folder.c: false: an error was printed */
bool folder_create(struct node *node);
bool folder_share_facts(struct node *node);

/* event_loop.c */
bool event_loop_open(struct node *node); /* false: errno says why */
void event_loop_run(struct node *node);  /* until SIGTERM or SIGINT */

/* dispatch.c */
void client_readable(struct node *node, struct client *client);
void client_end(struct node *node, struct client *client);

/* nvml_answers.c and control_answers.c fill in the reply and the payload */
void answer_nvml(struct node *node, struct client *caller, const struct sim_request *request, struct sim_reply *reply,
                 char *payload);
void answer_control(struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload);

/* control.c: returns the exit code, or -1 when the arguments are not a command */
int control_main(int argc, char **argv);
