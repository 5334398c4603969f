// A headless Chromium driven by the DevTools protocol: for facts that only a rendered page has, and for screenshots.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { type Teardown, temporaryFolder } from '../native/node.ts';

/** The program; undefined if none is on the PATH. */
export const browser = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']
  .flatMap((name) => (process.env.PATH ?? '').split(':').map((folder) => join(folder, name)))
  .find((path) => existsSync(path));

export const FLAGS: readonly string[] = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'];

export type OpenPage = {
  /** Evaluates an expression in the page and returns its JSON value; a promise is awaited. */
  evaluate(expression: string): Promise<unknown>;
  resize(width: number, height: number): Promise<void>;
  /** A PNG of the whole page, including what must be scrolled to; or of its upper left part, in another size. */
  picture(part?: { readonly width: number; readonly height: number; readonly scale: number }): Promise<Buffer>;
};

type Answer = { readonly id?: number; readonly result?: Record<string, unknown>; readonly error?: { message: string } };

export async function openPage(t: Teardown, url: string): Promise<OpenPage> {
  const data = `--user-data-dir=${temporaryFolder(t)}`;
  const child = spawn(
    browser ?? '',
    [...FLAGS, data, '--hide-scrollbars', '--remote-debugging-port=0', 'about:blank'],
    {
      stdio: ['ignore', 'ignore', 'pipe'],
    },
  );
  const exited = once(child, 'exit');
  t.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  let address: string | undefined;
  for await (const line of createInterface({ input: child.stderr })) {
    address = /DevTools listening on (ws:\S+)/.exec(line)?.[1];
    if (address !== undefined) break;
  }
  child.stderr.resume();
  if (address === undefined) throw new Error('the browser ended before it listened');
  const socket = new WebSocket(address);
  await once(socket as unknown as EventTarget, 'open');
  const waiting = new Map<number, (answer: Answer) => void>();
  socket.addEventListener('message', ({ data: text }) => {
    const answer = JSON.parse(String(text)) as Answer;
    if (answer.id !== undefined) waiting.get(answer.id)?.(answer);
  });
  let last = 0;
  const call = async (method: string, params: object, sessionId?: string): Promise<Record<string, unknown>> => {
    last += 1;
    const { promise, resolve } = Promise.withResolvers<Answer>();
    waiting.set(last, resolve);
    socket.send(JSON.stringify({ id: last, method, params, ...(sessionId !== undefined && { sessionId }) }));
    const { result, error } = await promise;
    if (error) throw new Error(`${method}: ${error.message}`);
    return result ?? {};
  };
  const { targetId } = await call('Target.createTarget', { url });
  const { sessionId } = (await call('Target.attachToTarget', { targetId, flatten: true })) as { sessionId: string };
  return {
    async evaluate(expression) {
      const params = { expression, returnByValue: true, awaitPromise: true };
      const answer = await call('Runtime.evaluate', params, sessionId);
      if (answer.exceptionDetails !== undefined) throw new Error(JSON.stringify(answer.exceptionDetails));
      return (answer.result as { value?: unknown }).value;
    },
    async resize(width, height) {
      const metrics = { width, height, deviceScaleFactor: 1, mobile: false };
      await call('Emulation.setDeviceMetricsOverride', metrics, sessionId);
    },
    async picture(part) {
      const params = { format: 'png', captureBeyondViewport: true, ...(part && { clip: { x: 0, y: 0, ...part } }) };
      const { data: base64 } = await call('Page.captureScreenshot', params, sessionId);
      return Buffer.from(String(base64), 'base64');
    },
  };
}
