// Reads the ResourceSlices of this node once a minute: DRA drivers write them when they start or divide a GPU. A failure (the
// cluster has no ResourceSlices, or denies the right to list them) is reported once and retried.
import { type KubeConfig, ResourceV1Api } from '@kubernetes/client-node';
import { createSingleFlight } from '../common/single-flight.ts';
import { describeApiError } from './api-error.ts';
import { createApiClient, PAGE_MS } from './client.ts';

export type SlicePolling = { close(): Promise<void> };

const EVERY_MS = 60_000;
const PAGE = 100;
const MOST_PAGES = 10;

export function pollResourceSlices(
  config: KubeConfig,
  nodeName: string,
  onSlices: (slices: readonly unknown[]) => void,
  onProblem: (text: string) => void,
  everyMs = EVERY_MS,
): SlicePolling {
  const api = createApiClient(config, ResourceV1Api, PAGE_MS);
  let isReported = false;
  const read = async () => {
    try {
      const slices: unknown[] = [];
      let from: string | undefined;
      for (let page = 0; page < MOST_PAGES; page += 1) {
        const listed = await api.listResourceSlice({
          fieldSelector: `spec.nodeName=${nodeName}`,
          limit: PAGE,
          ...(from !== undefined && { _continue: from }),
        });
        slices.push(...listed.items);
        from = listed.metadata?._continue || undefined;
        if (from === undefined) break;
      }
      isReported = false;
      onSlices(slices);
    } catch (error) {
      // The last slices stay valid: devices keep their GPUs while the API server is away.
      if (!isReported)
        onProblem(
          `cannot list the ResourceSlices of this node; devices of DRA claims are identified by their names: ${describeApiError(error)}`,
        );
      isReported = true;
    }
  };
  const reading = createSingleFlight(read);
  reading.ask();
  const timer = setInterval(reading.ask, everyMs).unref();
  return {
    async close() {
      clearInterval(timer);
      await reading.close();
    },
  };
}
