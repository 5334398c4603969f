// What DRA drivers tell of this node's devices, asked for every minute: it changes when a driver starts or a GPU is divided.
// Owns the asking; what is in the slices is read by whoever gets them. A cluster without them, or that does not let the agent
// read them, is told of once and asked again.
import { type KubeConfig, ResourceV1Api } from '@kubernetes/client-node';
import { createSingleFlight } from '../common/single-flight.ts';
import { describeApiError } from './api-error.ts';
import { createApiClient, PAGE_MS } from './client.ts';

export type SliceFollowing = { close(): Promise<void> };

const EVERY_MS = 60_000;
const PAGE = 100;
const MOST_PAGES = 10;

export function pollResourceSlices(
  config: KubeConfig,
  nodeName: string,
  onSlices: (slices: readonly unknown[]) => void,
  onProblem: (text: string) => void,
  everyMs = EVERY_MS,
): SliceFollowing {
  const api = createApiClient(config, ResourceV1Api, PAGE_MS);
  let told = false;
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
      told = false;
      onSlices(slices);
    } catch (error) {
      // What was told last stands: devices keep their GPUs while the API server is away.
      if (!told)
        onProblem(
          `resource slices of this node cannot be read, so devices of DRA claims are told by their names: ${describeApiError(error)}`,
        );
      told = true;
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
