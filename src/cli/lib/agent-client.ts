// Client of the agent's local socket for the CLI.
import { request } from 'node:http';
import { join } from 'node:path';
import { DEFAULTS, SOCKET_NAME } from '../../agent/config.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { type Option, type Parsed, text, UsageError } from './command.ts';

export const STATE_OPTION: Record<string, Option> = {
  state: {
    type: 'string',
    value: 'FOLDER',
    help: `state folder of the agent (default ${DEFAULTS.stateFolder}, or COTENANT_STATE)`,
  },
};

export function stateFolder(parsed: Parsed): string {
  return text(parsed, 'state') ?? process.env.COTENANT_STATE ?? DEFAULTS.stateFolder;
}

export type Answer = { readonly status: number; readonly body: unknown };

/** Sends one request; if no agent listens, the error names the remedy. */
export async function ask(folder: string, method: string, path: string, body?: unknown): Promise<Answer> {
  const payload = body === undefined ? undefined : JSON.stringify(body);
  return new Promise((resolve, reject) => {
    const call = request(
      {
        socketPath: join(folder, SOCKET_NAME),
        method,
        path,
        headers:
          payload === undefined
            ? {}
            : { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(payload) },
      },
      (response) => {
        const parts: Buffer[] = [];
        response.on('data', (part: Buffer) => parts.push(part));
        response.on('end', () => {
          const answer = Buffer.concat(parts).toString();
          try {
            resolve({ status: response.statusCode ?? 0, body: answer === '' ? undefined : JSON.parse(answer) });
          } catch {
            reject(new Error(`the agent's answer is not JSON: ${answer.slice(0, 200)}`));
          }
        });
      },
    );
    call.on('error', (error: NodeJS.ErrnoException) => {
      const where = join(folder, SOCKET_NAME);
      const remedy =
        error.code === 'EACCES'
          ? 'this user may not open it'
          : 'start one with "cotenant agent", or name its folder with --state';
      reject(new UsageError(`no agent answers at ${where} (${error.code ?? error.message}); ${remedy}`));
    });
    call.end(payload);
  });
}

export function errorOf(answer: Answer): string {
  const body = answer.body as { error?: unknown } | undefined;
  return typeof body?.error === 'string' ? body.error : `status ${answer.status}`;
}

export async function readSnapshot(folder: string): Promise<Snapshot> {
  const answer = await ask(folder, 'GET', '/v1/status');
  if (answer.status !== 200 || answer.body === null)
    throw new UsageError('the agent has no sample yet; try again in a second');
  return answer.body as Snapshot;
}

/** Ids of the grants with that id or name; a grant appears after its first sample. */
export function tenantsNamed(snapshot: Snapshot, name: string): string[] {
  const ids = snapshot.containers.flatMap(({ grantId, namespace, pod }) =>
    [grantId, pod, `${namespace}/${pod}`].includes(name) ? [grantId] : [],
  );
  return [...new Set(ids)];
}
