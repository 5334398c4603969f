// The worker thread that renders pages: a snapshot comes in, as an object or as the JSON of the other half, and the
// page goes out as bytes, plain and compressed. Rendering thousands of series would hold up an event loop that also
// enforces.
import { parentPort, workerData } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import { materialFrom } from '../agent/snapshot/ipc/validate.ts';
import type { Encoded, Material } from '../agent/snapshot/source.ts';
import { processes } from './collectors/process.ts';
import { compatCollectors } from './compat/index.ts';
import { COLLECTORS, createRenderer, type Format, renderDown } from './render.ts';

/** Which collectors a page has besides those that it always has. */
export type RenderOptions = {
  readonly processes: boolean;
  /** Names of other exporters, with commas. */
  readonly compatibility: string;
  readonly nodeName: string;
};

export type RenderRequest = { readonly id: number; readonly format: Format; readonly material: Material | Encoded };
export type Page = { readonly plain: Uint8Array; readonly gzip: Uint8Array };
export type RenderAnswer = { readonly id: number; readonly page: Page; readonly problems: readonly string[] };

const options = workerData as RenderOptions;
const render = createRenderer([
  ...COLLECTORS,
  ...(options.processes ? [processes] : []),
  ...compatCollectors(options.compatibility, { nodeName: options.nodeName }),
]);

/** A copy in a buffer of its own, which can be transferred to the other thread; Node's pooled buffers cannot. */
function transferable(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(new ArrayBuffer(bytes.byteLength));
  copy.set(bytes);
  return copy;
}

parentPort?.on('message', async ({ id, format, material }: RenderRequest) => {
  const { snapshot, own } = material instanceof Uint8Array ? materialFrom(material) : material;
  const { text, problems } = snapshot
    ? await render(snapshot, format, own)
    : { text: await renderDown(format, own), problems: [] };
  const plain = transferable(Buffer.from(text));
  const gzip = transferable(gzipSync(plain, { level: 1 }));
  const answer: RenderAnswer = { id, page: { plain, gzip }, problems };
  parentPort?.postMessage(answer, [plain.buffer, gzip.buffer]);
});
