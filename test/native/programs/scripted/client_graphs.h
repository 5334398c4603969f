/* Commands of client.c for graphs and streams: each prints the result and one value. */

static abi_result graph_instantiate(const char *form, abi_graph graph, uint64_t flags, abi_graph_exec *exec) {
    abi_instantiate_params params = {.flags = flags};
    if (!strcmp(form, "instantiate-1"))
        return CALL(cuGraphInstantiate, (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), exec, graph,
                    NULL, NULL, (size_t)0);
    if (!strcmp(form, "instantiate-2"))
        return CALL(cuGraphInstantiate_v2, (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), exec, graph,
                    NULL, NULL, (size_t)0);
    if (!strcmp(form, "instantiate-params"))
        return CALL(cuGraphInstantiateWithParams, (abi_graph_exec *, abi_graph, abi_instantiate_params *), exec, graph,
                    &params);
    if (!strcmp(form, "instantiate-ptsz"))
        return CALL(cuGraphInstantiateWithParams_ptsz, (abi_graph_exec *, abi_graph, abi_instantiate_params *), exec,
                    graph, &params);
    return CALL(cuGraphInstantiateWithFlags, (abi_graph_exec *, abi_graph, unsigned long long), exec, graph,
                (unsigned long long)flags);
}

static abi_result graph_node(const char *kind, abi_graph graph, uint64_t a, uint64_t b, uint64_t *value) {
    abi_node_params node = {.type = ABI_NODE_EMPTY};
    abi_graph_node made;
    abi_function function;
    abi_result result;
    if (!strcmp(kind, "node-alloc")) { /* node-alloc GRAPH BYTES [DEVICE]: its address */
        abi_location location = chosen.type == ABI_LOCATION_DEVICE ? (abi_location){chosen.type, (int)b} : chosen;
        node.type = ABI_NODE_MEM_ALLOC;
        node.alloc = (abi_alloc_node){.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = location}, .bytes = a};
    } else if (!strcmp(kind, "node-free")) {
        node.type = ABI_NODE_MEM_FREE;
        node.free = a;
    } else if (!strcmp(kind, "node-set")) { /* node-set GRAPH AT BYTES: all of them 7 */
        node.type = ABI_NODE_MEMSET;
        node.memset = (abi_memset_node){.to = a, .value = 7, .element = 1, .width = b, .height = 1};
    } else if (!strcmp(kind, "node-child")) {
        node.type = ABI_NODE_GRAPH;
        node.child = (abi_child_node){.graph = (abi_graph)(uintptr_t)a, .ownership = ABI_CHILD_MOVE};
    } else if (!strcmp(kind, "node-kernel")) { /* node-kernel GRAPH US */
        if ((result = kernel(&function, a, 0))) return result;
        node.type = ABI_NODE_KERNEL;
        node.kernel = (abi_kernel_node){.function = function, 1, 1, 1, 1, 1, 1};
    }
    result = CALL(cuGraphAddNode_v2,
                  (abi_graph_node *, abi_graph, const abi_graph_node *, const void *, size_t, abi_node_params *), &made,
                  graph, NULL, NULL, (size_t)0, &node);
    *value = node.type == ABI_NODE_MEM_ALLOC ? node.alloc.pointer : (uintptr_t)made;
    return result;
}

/* False: no such command. Streams are given as numbers; 0 is the default one. */
static int graph_command(const char *command, uint64_t a, uint64_t b, uint64_t c, abi_result *result, uint64_t *value) {
    abi_graph graph = (abi_graph)(uintptr_t)a;
    abi_graph_exec exec = (abi_graph_exec)(uintptr_t)a;
    abi_stream stream = (abi_stream)(uintptr_t)a, second = (abi_stream)(uintptr_t)b;
    abi_devptr at = 0;
    int number = 0;
    if (!strcmp(command, "graph")) {
        *result = CALL(cuGraphCreate, (abi_graph *, unsigned), &graph, 0u);
        *value = (uintptr_t)graph;
    } else if (!strncmp(command, "node-", 5)) {
        *result = graph_node(command, graph, b, c, value);
    } else if (!strcmp(command, "alloc-node")) { /* alloc-node GRAPH BYTES: by the call of its own */
        abi_graph_node made;
        abi_alloc_node alloc = {.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = {ABI_LOCATION_DEVICE, 0}},
                                .bytes = b};
        *result = CALL(cuGraphAddMemAllocNode,
                       (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_alloc_node *), &made, graph,
                       NULL, (size_t)0, &alloc);
        *value = alloc.pointer;
    } else if (!strcmp(command, "graph-end")) {
        *result = CALL(cuGraphDestroy, (abi_graph), graph);
    } else if (!strncmp(command, "instantiate", 11)) { /* instantiate[-FORM] GRAPH FLAGS */
        *result = graph_instantiate(command, graph, b, &exec);
        *value = (uintptr_t)exec;
    } else if (!strcmp(command, "graph-launch")) { /* graph-launch EXEC STREAM */
        *result = CALL(cuGraphLaunch, (abi_graph_exec, abi_stream), exec, second);
    } else if (!strcmp(command, "graph-launch-ptsz")) {
        *result = CALL(cuGraphLaunch_ptsz, (abi_graph_exec, abi_stream), exec, second);
    } else if (!strcmp(command, "graph-upload")) {
        *result = CALL(cuGraphUpload, (abi_graph_exec, abi_stream), exec, second);
    } else if (!strcmp(command, "exec-end")) {
        *result = CALL(cuGraphExecDestroy, (abi_graph_exec), exec);
    } else if (!strcmp(command, "graph-trim")) {
        *result = CALL(cuDeviceGraphMemTrim, (abi_device), (abi_device)a);
    } else if (!strcmp(command, "graph-memory")) { /* graph-memory DEVICE ATTRIBUTE */
        *result = CALL(cuDeviceGetGraphMemAttribute, (abi_device, int, void *), (abi_device)a, (int)b, (void *)value);
    } else if (!strcmp(command, "graph-mark")) { /* graph-mark DEVICE ATTRIBUTE: put back to what it is now */
        *result = CALL(cuDeviceSetGraphMemAttribute, (abi_device, int, void *), (abi_device)a, (int)b, (void *)value);
    } else if (!strcmp(command, "stream")) {
        *result = CALL(cuStreamCreate, (abi_stream *, unsigned), &stream, (unsigned)ABI_STREAM_NON_BLOCKING);
        *value = (uintptr_t)stream;
    } else if (!strcmp(command, "stream-sync")) {
        *result = CALL(cuStreamSynchronize, (abi_stream), stream);
    } else if (!strcmp(command, "stream-alloc")) { /* stream-alloc STREAM BYTES */
        *result = CALL(cuMemAllocAsync, (abi_devptr *, size_t, abi_stream), &at, (size_t)b, stream);
        *value = at;
    } else if (!strcmp(command, "stream-free")) { /* stream-free STREAM AT */
        *result = CALL(cuMemFreeAsync, (abi_devptr, abi_stream), (abi_devptr)b, stream);
    } else if (!strcmp(command, "stream-set")) { /* stream-set STREAM AT BYTES: all of them 9 */
        *result = CALL(cuMemsetD8Async, (abi_devptr, unsigned char, size_t, abi_stream), (abi_devptr)b,
                       (unsigned char)9, (size_t)c, stream);
    } else if (!strcmp(command, "stream-launch")) { /* stream-launch STREAM US */
        abi_function function;
        *result = kernel(&function, b, 0);
        if (!*result)
            *result = CALL(cuLaunchKernel,
                           (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            abi_stream, void **, void **),
                           function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    } else if (!strcmp(command,
                       "stream-joins")) { /* stream-joins STREAM OTHER: OTHER waits for what STREAM has so far */
        abi_event event;
        *result = CALL(cuEventCreate, (abi_event *, unsigned), &event, 0u);
        if (!*result) *result = CALL(cuEventRecord, (abi_event, abi_stream), event, stream);
        if (!*result) *result = CALL(cuStreamWaitEvent, (abi_stream, abi_event, unsigned), second, event, 0u);
        if (!*result) *result = CALL(cuEventDestroy_v2, (abi_event), event);
    } else if (!strcmp(command, "capture")) { /* capture STREAM */
        *result = CALL(cuStreamBeginCapture_v2, (abi_stream, int), stream, (int)ABI_CAPTURE_RELAXED);
    } else if (!strcmp(command, "capture-end")) { /* capture-end STREAM: the graph */
        *result = CALL(cuStreamEndCapture, (abi_stream, abi_graph *), stream, &graph);
        *value = (uintptr_t)graph;
    } else if (!strcmp(command, "capturing")) { /* capturing STREAM: 0 no, 1 yes, 2 void */
        *result = CALL(cuStreamIsCapturing, (abi_stream, int *), stream, &number);
        *value = (uint64_t)number;
    } else {
        return 0;
    }
    keep(*value);
    return 1;
}
