// Client of the agent's local socket for the CLI.
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { text as textOf } from 'node:stream/consumers';
import { DEFAULTS, SOCKET_NAME } from '../../agent/config.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { type Options, type Parsed, Refused, text, UsageError } from './command.ts';

export const STATE_OPTION: Options = {
  state: {
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
  const socketPath = join(folder, SOCKET_NAME);
  // On a connection of its own: an agent may have closed one that rested, as while `top` was stopped by Ctrl-Z, and a
  // request on that one would be lost.
  const call = request({ socketPath, method, path, headers: { 'Content-Type': 'application/json' }, agent: false });
  call.end(body === undefined ? undefined : JSON.stringify(body));
  const [response] = (await once(call, 'response').catch(({ code, message }: NodeJS.ErrnoException) => {
    const remedy =
      code === 'EACCES'
        ? 'this user may not open it'
        : 'start one with "cotenant agent", or name its folder with --state';
    throw new UsageError(`no agent answers at ${socketPath} (${code ?? message}); ${remedy}`);
  })) as [IncomingMessage];
  const answer = await textOf(response);
  try {
    return { status: response.statusCode ?? 0, body: answer === '' ? undefined : JSON.parse(answer) };
  } catch {
    throw new Error(`the agent's answer is not JSON: ${answer.slice(0, 200)}`);
  }
}

export function errorOf(answer: Answer): string {
  const body = answer.body as { error?: unknown } | undefined;
  return typeof body?.error === 'string' ? body.error : `status ${answer.status}`;
}

/** The body of the answer to a request that the agent must not refuse. */
export async function demand<T>(folder: string, method: string, path: string, body?: unknown): Promise<T> {
  return bodyOf<T>(await ask(folder, method, path, body));
}

export function bodyOf<T>(answer: Answer): T {
  if (answer.status !== 200) throw new Refused(errorOf(answer));
  return answer.body as T;
}

export async function readSnapshot(folder: string): Promise<Snapshot> {
  const answer = await ask(folder, 'GET', '/v1/status');
  if (answer.status !== 200 || answer.body === null)
    throw new UsageError('the agent has no sample yet; try again in a second');
  return answer.body as Snapshot;
}
