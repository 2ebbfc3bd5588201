! Diffusive fluxes -kappa dq/dn through the faces, second order.
module diffusion
  use kinds, only: dp, ghosts
  use grid, only: grid_t
  implicit none

contains

  ! Adds kappa laplacian(q) to the tendency, as a difference of fluxes so that what leaves one cell enters the next.
  subroutine add_diffusion(g, kappa, q, tendency)
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: kappa, q(1-ghosts:, 1-ghosts:)
    real(dp), intent(inout) :: tendency(:, :)
    real(dp) :: flux_x(0:g%nx, g%ny), flux_y(g%nx, 0:g%ny)
    integer :: i, j
    do j = 1, g%ny
      do i = 0, g%nx
        flux_x(i, j) = -kappa * (q(i+1, j) - q(i, j)) / g%dx
      end do
    end do
    do j = 0, g%ny
      do i = 1, g%nx
        flux_y(i, j) = -kappa * (q(i, j+1) - q(i, j)) / g%dy
      end do
    end do
    do j = 1, g%ny
      do i = 1, g%nx
        tendency(i, j) = tendency(i, j) - (flux_x(i, j) - flux_x(i-1, j)) / g%dx
        tendency(i, j) = tendency(i, j) - (flux_y(i, j) - flux_y(i, j-1)) / g%dy
      end do
    end do
  end subroutine add_diffusion

end module diffusion
