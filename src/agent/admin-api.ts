// HTTP on the agent's local socket: grants for processes, and the data that the CLI shows. Every user that can open the
// socket can request GPU memory of this node: its file mode is the access control. It never listens on a network.

import { join } from 'node:path';
import express, { type Express, type Request, type Response } from 'express';
import * as v from 'valibot';
import { parseComputeChange } from '../api/compute-annotation.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  gpuShare,
  MODES,
  type Mode,
  parseComputePolicy,
} from '../api/request.ts';
import { field, isObject, type JsonObject } from '../common/json.ts';
import type { Result } from '../common/result.ts';
import { listOf, oneOf, parse, settings, whole } from '../common/schema.ts';
import { type EffectiveMode, effectiveMode } from '../policy/mode.ts';
import type { NotFound } from './grants/by-name.ts';
import { PRELOADED } from './grants/engine-files.ts';
import { computeChoice } from './grants/grant.ts';
import type { LiveGrant } from './grants/live-grant.ts';
import type { Refusal } from './grants/refusal.ts';
import type { CdiSpec } from './kubelet/cdi/spec.ts';
import type { Node } from './node-api.ts';
import type { Driver } from './os/driver-handle.ts';

export type GrantAnswer = {
  readonly id: string;
  readonly folder: string;
  readonly preload: string;
  /** Its launches go by its share of compute. */
  readonly leased: boolean;
  readonly compute: ComputeChoice;
  /** What the agent does when it is over its grant, and the source of that mode. */
  readonly enforcement: EffectiveMode;
  readonly gpus: readonly {
    readonly gpuUuid: string;
    readonly memoryBytes: number;
    readonly coresPercent: number;
    readonly coresLimitPercent?: number;
  }[];
};

/** The same for a container: its CDI device, and the specification with this device alone. */
export type ContainerAnswer = GrantAnswer & { readonly device: string; readonly spec: CdiSpec };

const MOST = Number.MAX_SAFE_INTEGER;
const grantBody = v.object({
  name: v.string(),
  container: v.string(),
  shares: listOf(gpuShare, 1, 16),
  gpuUuids: listOf(v.string()),
  isolateMemory: v.boolean(),
  compute: v.exactOptional(computeChoice),
  /** The process starts a container, which has the grant. */
  forContainer: v.exactOptional(v.boolean()),
  pid: whole(0, MOST),
  startTicks: whole(0, MOST),
});
/** What `cotenant run` and `cotenant docker run` ask for. */
export type GrantBody = v.InferOutput<typeof grantBody>;

/** Of the node, or of one GPU. */
const computeBody = v.pipe(
  settings({
    gpuUuid: v.exactOptional(v.string()),
    policy: v.exactOptional(
      v.nullable(
        v.pipe(
          v.unknown(),
          v.transform((given) => parseComputePolicy(String(given)) ?? given),
          oneOf(COMPUTE_POLICIES),
        ),
      ),
    ),
    highCapPercent: v.exactOptional(v.nullable(whole(1, 100))),
  }),
  v.check(
    ({ policy, highCapPercent }) => policy !== undefined || highCapPercent !== undefined,
    'a policy, or highCapPercent',
  ),
  v.check(
    ({ gpuUuid, highCapPercent }) => gpuUuid === undefined || highCapPercent === undefined,
    'a change of one GPU: highCapPercent is of the node',
  ),
);

/** What a change of a grant has besides its compute. */
const grantChange = v.object({
  memoryBytes: v.exactOptional(whole(1, MOST)),
  enforcement: v.exactOptional(v.nullable(oneOf(MODES))),
});

function answerOf(live: LiveGrant, mode: Mode): GrantAnswer {
  return {
    id: live.grant.id,
    folder: live.folder,
    leased: live.leased,
    preload: PRELOADED.map((name) => join(live.folder, name)).join(' '),
    compute: live.grant.compute ?? {},
    enforcement: effectiveMode(mode, live.grant.enforcement),
    gpus: live.grant.gpus.map(({ gpuUuid, memoryBytes, coresPercent, coresLimitPercent }) => ({
      gpuUuid,
      memoryBytes,
      coresPercent,
      ...(coresLimitPercent !== undefined && { coresLimitPercent }),
    })),
  };
}

export function createAdmin(node: Node, driver: Driver): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(express.json({ limit: '64kb', strict: true }));
  const answer = (response: Response, live: Result<LiveGrant, Refusal>, good: number) => {
    if (live.ok) response.status(good).json(answerOf(live.value, node.mode()));
    else response.status(live.error.later ? 503 : 409).json({ error: live.error.refused });
  };
  const refuse = (response: Response, error: string) => void response.status(400).json({ error });
  const notFound = (response: Response, found: NotFound) =>
    void response.status(found.reason === 'ambiguous-name' ? 409 : 404).json(found);

  // For the liveness probe in the container.
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/v1/status', (_request, response) => {
    response.json(node.snapshot() ?? null);
  });
  app.post('/v1/grants', (request, response) => {
    const body = parse(grantBody, request.body);
    if (!body.ok) return refuse(response, body.error);
    const { pid, startTicks, forContainer, ...ask } = body.value;
    if (forContainer) {
      const started = node.slices.start(ask, { pid, startTicks });
      if (!started.ok) return answer(response, started, 201);
      const { live, device, spec } = started.value;
      response.status(201).json({ ...answerOf(live, node.mode()), device, spec } satisfies ContainerAnswer);
      return;
    }
    answer(response, node.grant({ ...ask, owner: { pid, startTicks } }), 201);
  });
  app.get('/v1/slices', (_request, response) => {
    response.json(node.slices.list());
  });
  app.get('/v1/slices/:device', (request, response) => {
    const device = String(request.params.device);
    const spec = node.slices.specOf(device);
    if (spec) response.json(spec);
    else response.status(404).json({ error: `no slice ${device} on this machine` });
  });
  app.get('/v1/grants/:id', (request, response) => {
    const found = node.find(request.params.id);
    const live = found.ok ? node.grantFiles(found.value) : undefined;
    if (!found.ok) notFound(response, found.error);
    else if (live) response.json(answerOf(live, node.mode()));
  });
  app.patch('/v1/grants/:id', (request, response) => {
    const { memoryBytes: _, enforcement: __, ...rest } = isObject(request.body) ? request.body : ({} as JsonObject);
    const own = parse(grantChange, request.body ?? {});
    if (!own.ok) return refuse(response, own.error);
    const compute = parseComputeChange(rest);
    if (!compute.ok) return refuse(response, compute.error);
    const change = { ...compute.value, ...own.value };
    if (Object.keys(change).length === 0)
      return refuse(response, 'want memoryBytes, enforcement, or something of compute');
    const { enforcement: _mode, ...amounts } = change;
    const found = node.find(request.params.id);
    if (!found.ok) return notFound(response, found.error);
    const held = Object.keys(amounts).length > 0 ? node.slices.whereKept(found.value) : undefined;
    if (held !== undefined) response.status(409).json({ error: held });
    else answer(response, node.change(found.value, change), 200);
  });
  app.get('/v1/driver', (_request, response) => {
    response.json(driver.state());
  });
  app.post('/v1/driver/release', async (_request, response) => {
    response.json(await driver.release());
  });
  app.post('/v1/driver/take', (_request, response) => {
    response.json(driver.reacquire());
  });
  app.post('/v1/driver/clear-xid', (request, response) => {
    const gpu = field(request.body, 'gpu');
    if (typeof gpu !== 'string' || gpu === '') return refuse(response, 'gpu: want the UUID or the index of a GPU');
    const index = /^\d{1,4}$/.test(gpu) ? Number(gpu) : undefined;
    const shown = node.snapshot()?.devices.find(({ gpu }) => gpu.index === index)?.gpu.uuid;
    const cleared = node.clearFault(shown ?? gpu);
    if (cleared) response.json({ gpuUuid: cleared.gpuUuid, xid: cleared.xid, atMs: cleared.atMs });
    else response.status(404).json({ error: `no Xid is held against GPU ${shown ?? gpu}` });
  });
  app.get('/v1/compute', (_request, response) => {
    response.json(node.compute.state());
  });
  app.patch('/v1/compute', (request, response) => {
    const change = parse(computeBody, request.body);
    if (!change.ok) return refuse(response, change.error);
    const state = node.compute.set(change.value);
    if (state.ok) response.json(state.value);
    else response.status(409).json({ error: state.error });
  });
  app.get('/v1/actions', (request, response) => {
    const { of } = request.query;
    if (typeof of !== 'string' || of === '')
      return refuse(response, 'of: want a container by id, pod or namespace/pod');
    const records = node.actionsOn(of);
    const found = node.find(of);
    // A container that has ended may have records; several of one name have theirs together.
    if (records.length === 0 && !found.ok && found.error.reason === 'unknown-grant') notFound(response, found.error);
    else response.json(records);
  });
  app.delete('/v1/grants/:id', (request, response) => {
    const found = node.find(request.params.id);
    if (!found.ok) return notFound(response, found.error);
    if (node.release(found.value) !== 'in use') response.status(204).end();
    else response.status(409).json({ error: `grant ${found.value} is in use by a container`, reason: 'in-use' });
  });
  app.use((error: Error & { status?: number }, _request: Request, response: Response, _next: unknown) => {
    response.status(error.status ?? 500).json({ error: error.message });
  });
  return app;
}
