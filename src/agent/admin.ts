// The agent's local socket: grants for plain processes, and what the CLI shows. Who may open the socket may ask for GPU
// memory of this node, so its file mode is the access control; nothing of it listens on a network.
import { join } from 'node:path';
import express, { type Express, type Request, type Response } from 'express';
import type { CardShare } from '../request/request.ts';
import { PRELOADED } from './engines.ts';
import type { Refusal } from './grants/plain.ts';
import type { LiveGrant } from './grants/registry.ts';
import type { Node } from './node.ts';

export type GrantAnswer = {
  readonly id: string;
  readonly folder: string;
  readonly preload: string;
  /** Its launches go by its share of compute. */
  readonly leased: boolean;
  readonly cards: readonly { readonly gpuUuid: string; readonly memoryBytes: number; readonly coresPercent: number }[];
};

/** What `cotenant run` asks for. */
export type GrantBody = {
  readonly name: string;
  readonly container: string;
  readonly shares: readonly CardShare[];
  readonly gpuUuids: readonly string[];
  readonly isolateMemory: boolean;
  readonly pid: number;
  readonly startTicks: number;
};

function answerOf(live: LiveGrant): GrantAnswer {
  return {
    id: live.grant.id,
    folder: live.folder,
    leased: live.leased,
    preload: PRELOADED.map((name) => join(live.folder, name)).join(' '),
    cards: live.grant.cards.map(({ gpuUuid, memoryBytes, coresPercent }) => ({ gpuUuid, memoryBytes, coresPercent })),
  };
}

function wrongWith(body: Partial<GrantBody>): string | undefined {
  if (typeof body.name !== 'string' || typeof body.container !== 'string') return 'name and container: want text';
  if (!Array.isArray(body.shares) || body.shares.length === 0 || body.shares.length > 16)
    return 'shares: want 1 to 16 of them';
  for (const [index, share] of (body.shares as readonly Partial<CardShare>[]).entries()) {
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

const idOf = (request: Request): string => String(request.params.id ?? '');

export function createAdmin(node: Node): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(express.json({ limit: '64kb', strict: true }));
  const answer = (response: Response, live: LiveGrant | Refusal, good: number) => {
    if ('refused' in live) response.status(live.later ? 503 : 409).json({ error: live.refused });
    else response.status(good).json(answerOf(live));
  };

  app.get('/v1/status', (_request, response) => {
    response.json(node.view() ?? null);
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
    const bytes = (request.body as { memoryBytes?: unknown } | undefined)?.memoryBytes;
    if (!Number.isSafeInteger(bytes) || Number(bytes) <= 0) {
      response.status(400).json({ error: 'memoryBytes: want a number of bytes per card' });
      return;
    }
    answer(response, node.resize(idOf(request), Number(bytes)), 200);
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
