// Asks the API server whose a token is and whether they may get a path, as kube-rbac-proxy does: a TokenReview, then a
// SubjectAccessReview of a URL that is no resource. Owns these two calls and what their answers mean.
import { AuthenticationV1Api, AuthorizationV1Api, type KubeConfig } from '@kubernetes/client-node';
import { describeApiError } from './api-error.ts';
import { createApiClient } from './client.ts';

export type Reviewed = 'allowed' | 'unauthenticated' | 'forbidden';
/** Rejects when the API server cannot be asked. */
export type ReviewCall = (token: string, path: string) => Promise<Reviewed>;

/** Of each of the two: together they are shorter than a scrape may take. */
const WITHIN_MS = 2000;

export function createTokenReviewer(config: KubeConfig): ReviewCall {
  const authentication = createApiClient(config, AuthenticationV1Api, WITHIN_MS);
  const authorization = createApiClient(config, AuthorizationV1Api, WITHIN_MS);
  return async (token, path) => {
    try {
      const { status: who } = await authentication.createTokenReview({ body: { spec: { token } } });
      const { username, uid, groups, extra } = who?.user ?? {};
      if (who?.authenticated !== true || username === undefined) return 'unauthenticated';
      const { status: may } = await authorization.createSubjectAccessReview({
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
      return may?.allowed === true && may.denied !== true ? 'allowed' : 'forbidden';
    } catch (error) {
      throw new Error(describeApiError(error));
    }
  };
}
