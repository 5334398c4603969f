// Asks the API server whether a bearer token may GET a path, as kube-rbac-proxy does: a TokenReview, then a
// SubjectAccessReview of a non-resource URL.
import { AuthenticationV1Api, AuthorizationV1Api, type KubeConfig } from '@kubernetes/client-node';
import { describeApiError } from './api-error.ts';
import { createApiClient } from './client.ts';

export type Reviewed = 'allowed' | 'unauthenticated' | 'forbidden';
/** Rejects when the API server cannot be reached. */
export type ReviewCall = (token: string, path: string) => Promise<Reviewed>;

/** For each of the two calls: together they take less than a scrape may. */
const WITHIN_MS = 2000;

export function createTokenReviewer(config: KubeConfig): ReviewCall {
  const authentication = createApiClient(config, AuthenticationV1Api, WITHIN_MS);
  const authorization = createApiClient(config, AuthorizationV1Api, WITHIN_MS);
  return async (token, path) => {
    try {
      const { status: review } = await authentication.createTokenReview({ body: { spec: { token } } });
      const { username, uid, groups, extra } = review?.user ?? {};
      if (review?.authenticated !== true || username === undefined) return 'unauthenticated';
      const { status: access } = await authorization.createSubjectAccessReview({
        body: {
          spec: {
            user: username,
            ...(uid !== undefined && { uid }),
            ...(groups !== undefined && { groups }),
            ...(extra !== undefined && { extra }),
            nonResourceAttributes: { path, verb: 'get' },
          },
        },
      });
      return access?.allowed === true && access.denied !== true ? 'allowed' : 'forbidden';
    } catch (error) {
      throw new Error(describeApiError(error));
    }
  };
}
