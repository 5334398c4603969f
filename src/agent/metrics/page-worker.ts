// The page's own thread: a view comes in, the finished page goes out as bytes, plain and compressed. Rendering ten thousand
// series takes longer than a loop that also stops containers may be held up.
import { parentPort, workerData } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import type { View } from '../view.ts';
import { createPage, FAMILIES, PROCESS_FAMILY } from './page.ts';

export type PageRequest = { readonly view: View; readonly append: string };
export type PageAnswer = {
  readonly plain: Uint8Array;
  readonly gzip: Uint8Array;
  readonly problems: readonly string[];
};

const { processes } = workerData as { processes: boolean };
const make = createPage(processes ? [...FAMILIES, PROCESS_FAMILY] : FAMILIES);

/** Bytes in a buffer of their own: a pooled one must not be given away. */
function own(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(new ArrayBuffer(bytes.byteLength));
  copy.set(bytes);
  return copy;
}

parentPort?.on('message', async ({ view, append }: PageRequest) => {
  const { text, problems } = await make(view);
  const plain = own(Buffer.from(`${text}${append}`));
  const gzip = own(gzipSync(plain, { level: 1 }));
  const answer: PageAnswer = { plain, gzip, problems };
  parentPort?.postMessage(answer, [plain.buffer, gzip.buffer]);
});
