// The page's own thread: a view comes in, the finished page goes out as bytes, plain and compressed. Rendering ten thousand
// series takes longer than a loop that also stops containers may be held up.
import { parentPort, workerData } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import type { View } from '../view.ts';
import { compatFamilies } from './compat/sets.ts';
import { toOpenMetrics } from './open-metrics.ts';
import { createPage, FAMILIES, PROCESS_FAMILY } from './page.ts';

/** Which families a page has besides those that it always has. */
export type PageOptions = {
  readonly processes: boolean;
  /** Names of other exporters, with commas. */
  readonly compatibility: string;
  readonly nodeName: string;
};

/** `openMetrics`: is anybody reading that form? */
export type PageRequest = { readonly view: View; readonly append: string; readonly openMetrics: boolean };
export type PageForm = { readonly plain: Uint8Array; readonly gzip: Uint8Array };
export type PageAnswer = PageForm & {
  readonly openMetrics?: PageForm;
  readonly problems: readonly string[];
};

const { processes, compatibility, nodeName } = workerData as PageOptions;
const make = createPage([
  ...FAMILIES,
  ...(processes ? [PROCESS_FAMILY] : []),
  ...compatFamilies(compatibility, { nodeName }),
]);

/** Bytes in a buffer of their own: a pooled one must not be given away. */
function own(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(new ArrayBuffer(bytes.byteLength));
  copy.set(bytes);
  return copy;
}

function formOf(text: string) {
  const plain = own(Buffer.from(text));
  return { plain, gzip: own(gzipSync(plain, { level: 1 })) };
}

parentPort?.on('message', async ({ view, append, openMetrics }: PageRequest) => {
  const { text, problems } = await make(view);
  const page = formOf(`${text}${append}`);
  const open = openMetrics ? formOf(toOpenMetrics(`${text}${append}`)) : undefined;
  const answer: PageAnswer = { ...page, problems, ...(open && { openMetrics: open }) };
  const buffers = [page, open].flatMap((form) => (form ? [form.plain.buffer, form.gzip.buffer] : []));
  parentPort?.postMessage(answer, buffers);
});
