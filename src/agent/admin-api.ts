// HTTP on the agent's local socket: grants for processes, and the data that the CLI shows. Every user that can open the
// socket can request GPU memory of this node: its file mode is the access control. It never listens on a network.
import { join } from 'node:path';
import express, { type Express, type Request, type Response } from 'express';
import { parseComputeChange } from '../api/compute-annotation.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  type GpuShare,
  MODES,
  type Mode,
  parseComputePolicy,
} from '../api/request.ts';
import { field, isObject, isWithin, type JsonObject } from '../common/json.ts';
import { type EffectiveMode, effectiveMode, parseMode } from '../policy/mode.ts';
import type { NodeComputeChange } from './compute/shares.ts';
import { PRELOADED } from './grants/engine-files.ts';
import type { LiveGrant } from './grants/live-grant.ts';
import type { Refusal } from './grants/refusal.ts';
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

/** What `cotenant run` asks for. */
export type GrantBody = {
  readonly name: string;
  readonly container: string;
  readonly shares: readonly GpuShare[];
  readonly gpuUuids: readonly string[];
  readonly isolateMemory: boolean;
  readonly pid: number;
  readonly startTicks: number;
};

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

function wrongWith(body: Partial<GrantBody>): string | undefined {
  if (typeof body.name !== 'string' || typeof body.container !== 'string') return 'name and container: want text';
  if (!Array.isArray(body.shares) || body.shares.length === 0 || body.shares.length > 16)
    return 'shares: want 1 to 16 of them';
  for (const [index, share] of (body.shares as readonly Partial<GpuShare>[]).entries()) {
    const bytes = share?.memory?.kind === 'bytes' ? share.memory.bytes : undefined;
    const good = share?.memory?.kind === 'whole' || (Number.isSafeInteger(bytes) && Number(bytes) > 0);
    if (!good) return `shares[${index}].memory: want {"kind":"bytes","bytes":N} or {"kind":"whole"}`;
    const cores = share.coresPercent;
    if (cores !== undefined && !(Number.isInteger(cores) && cores >= 1 && cores <= 100))
      return `shares[${index}].coresPercent: want 1 to 100`;
  }
  if (!Array.isArray(body.gpuUuids) || !body.gpuUuids.every((uuid) => typeof uuid === 'string'))
    return 'gpuUuids: want a list of text';
  if (typeof body.isolateMemory !== 'boolean') return 'isolateMemory: want true or false';
  if (!Number.isInteger(body.pid) || !Number.isInteger(body.startTicks))
    return 'pid and startTicks: want whole numbers';
  return undefined;
}

/** Of the node, or of one GPU; or what is wrong with it. */
function nodeChange(body: unknown): NodeComputeChange | string {
  if (!isObject(body)) return 'want a map of gpuUuid, policy, highCapPercent';
  const { gpuUuid, policy, highCapPercent: cap, ...others } = body;
  const [stray] = Object.keys(others);
  if (stray !== undefined) return `${stray}: no such setting; known are gpuUuid, policy, highCapPercent`;
  const named = policy === undefined || policy === null ? policy : parseComputePolicy(String(policy));
  if (gpuUuid !== undefined && typeof gpuUuid !== 'string') return 'gpuUuid: want text';
  if (named === undefined && policy !== undefined) return `policy: want one of ${COMPUTE_POLICIES.join(', ')}, or null`;
  if (cap !== undefined && cap !== null && !isWithin(cap, 1, 100)) return 'highCapPercent: want 1 to 100, or null';
  if (cap !== undefined && gpuUuid !== undefined) return 'highCapPercent: is of the node, not of one GPU';
  if (named === undefined && cap === undefined) return 'want a policy, or highCapPercent';
  return {
    ...(gpuUuid !== undefined && { gpuUuid }),
    ...(named !== undefined && { policy: named }),
    ...(cap !== undefined && { highCapPercent: cap }),
  };
}

const idOf = (request: Request): string => String(request.params.id ?? '');

export function createAdmin(node: Node, driver: Driver): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(express.json({ limit: '64kb', strict: true }));
  const answer = (response: Response, live: LiveGrant | Refusal, good: number) => {
    if ('refused' in live) response.status(live.later ? 503 : 409).json({ error: live.refused });
    else response.status(good).json(answerOf(live, node.mode()));
  };

  // For the liveness probe in the container.
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/v1/status', (_request, response) => {
    response.json(node.snapshot() ?? null);
  });
  app.post('/v1/grants', (request, response) => {
    const body = (request.body ?? {}) as Partial<GrantBody>;
    const wrong = wrongWith(body);
    if (wrong !== undefined) {
      response.status(400).json({ error: wrong });
      return;
    }
    const { name, container, shares, gpuUuids, isolateMemory, pid, startTicks } = body as GrantBody;
    answer(response, node.grant({ name, container, shares, gpuUuids, isolateMemory, owner: { pid, startTicks } }), 201);
  });
  app.patch('/v1/grants/:id', (request, response) => {
    const { memoryBytes: bytes, enforcement, ...rest } = isObject(request.body) ? request.body : ({} as JsonObject);
    if (bytes !== undefined && (!Number.isSafeInteger(bytes) || Number(bytes) <= 0)) {
      response.status(400).json({ error: 'memoryBytes: want a number of bytes per GPU' });
      return;
    }
    const mode = enforcement === null ? null : parseMode(enforcement);
    if (enforcement !== undefined && mode === undefined) {
      response.status(400).json({ error: `enforcement: want one of ${MODES.join(', ')}, or null` });
      return;
    }
    const read = parseComputeChange(rest);
    if (!read.ok) {
      response.status(400).json({ error: read.error });
      return;
    }
    const change = read.value;
    if (bytes === undefined && mode === undefined && Object.keys(change).length === 0) {
      response.status(400).json({ error: 'want memoryBytes, enforcement, or something of compute' });
      return;
    }
    const whole = mode === undefined ? change : { ...change, enforcement: mode };
    answer(response, node.change(idOf(request), whole, bytes as number | undefined), 200);
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
    if (typeof gpu !== 'string' || gpu === '') {
      response.status(400).json({ error: 'gpu: want the UUID or the index of a GPU' });
      return;
    }
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
    const change = nodeChange(request.body);
    if (typeof change === 'string') {
      response.status(400).json({ error: change });
      return;
    }
    const state = node.compute.set(change);
    if ('refused' in state) response.status(409).json({ error: state.refused });
    else response.json(state);
  });
  app.get('/v1/actions', (request, response) => {
    const { of } = request.query;
    if (typeof of === 'string' && of !== '') response.json(node.actionsOn(of));
    else response.status(400).json({ error: 'of: want a container by id, pod or namespace/pod' });
  });
  app.delete('/v1/grants/:id', (request, response) => {
    if (node.release(idOf(request))) response.status(204).end();
    else response.status(404).json({ error: `no grant ${idOf(request)} on this node` });
  });
  app.use((error: Error & { status?: number }, _request: Request, response: Response, _next: unknown) => {
    response.status(error.status ?? 500).json({ error: error.message });
  });
  return app;
}
